"""What `ridgeline drill` shows: a question, its worked solution, a whole sheet, the standing."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline import quantity
from ridgeline.records.drill import (
    IN_TIME_SECONDS,
    DrillGrade,
    DrillQuestion,
    DrillResult,
    DrillStanding,
    SessionScore,
)
from ridgeline.report import document as doc

_LETTERS = "abcdefgh"
_SPARKS = "▁▂▃▄▅▆▇█"
_LATEST = 12


def question_document(question: DrillQuestion, place: int, count: int) -> doc.ReportDocument:
    """The question, its evidence; what is asked stands in the prompts."""
    title = f"{place} of {count} · {question.topic}"
    blocks: list[doc.Block] = [
        doc.Paragraph(title, "accent"),
        doc.Paragraph(question.text, "strong"),
    ]
    if question.evidence:
        blocks.append(doc.Lines(question.evidence))
    return doc.ReportDocument(title, blocks)


def options_document(options: Sequence[str]) -> doc.ReportDocument:
    """The options of one ask, with the letter of each."""
    pairs: list[tuple[str, doc.Words]] = [
        (f"{letter})", option) for letter, option in zip(_LETTERS, options, strict=False)
    ]
    return doc.ReportDocument("Options", [doc.Values(pairs, listed=True)])


def grade_document(grade: DrillGrade) -> doc.ReportDocument:
    """Right or wrong, and how the answer is found."""
    return doc.ReportDocument(grade.id, grade_blocks(grade))


def grade_blocks(grade: DrillGrade) -> list[doc.Block]:
    """The blocks of one grade: a verdict for each ask, then the solution's steps."""
    blocks: list[doc.Block] = []
    for one in grade.answered:
        tone: doc.Tone = "good" if one.correct else "bad"
        word = "right" if one.correct else "wrong"
        off = "" if one.error is None else f", {quantity.change(one.error)} off"
        told: list[str | doc.Phrase] = [doc.Phrase(word, tone), f": {one.right}{off}"]
        if one.remark:
            told.append(doc.Phrase(f" ({one.remark})", "dim"))
        blocks.append(doc.Paragraph(tuple(told)))
    if grade.seconds is not None and grade.seconds > IN_TIME_SECONDS:
        late = f"{quantity.seconds(grade.seconds)} is past two minutes: half the points."
        blocks.append(doc.Paragraph(late, "warning"))
    for step in grade.solution:
        lines: list[doc.Words] = [step.says]
        if step.command:
            lines.append(doc.Phrase(step.command, "dim"))
        lines.append(("= ", doc.Phrase(step.result, "strong")))
        blocks.append(doc.Lines(lines))
    return blocks


def result_document(found: DrillResult) -> doc.ReportDocument:
    """Every question of a sheet, graded."""
    right = sum(all(one.correct for one in grade.answered) for grade in found.grades)
    lead = doc.Lead(
        quantity.percent(found.score), f"{right} of {len(found.grades)} all right", "Drill"
    )
    chapters = [
        doc.Chapter(f"{grade.topic}: {grade.id}", grade_blocks(grade)) for grade in found.grades
    ]
    return doc.ReportDocument("Drill", [lead, *chapters])


def session_document(grades: Sequence[DrillGrade], best: float | None) -> doc.ReportDocument:
    """What one session came to; `best` is the best score of an earlier one."""
    score = sum(one.score for one in grades) / len(grades)
    seconds = sum(one.seconds or 0.0 for one in grades) / len(grades)
    title = f"{quantity.percent(score)} over {_questions(len(grades))}"
    said = f"{quantity.seconds(seconds)} an answer"
    if best is not None:
        said += f"; the best session before had {quantity.percent(best)}"
    return doc.ReportDocument("Drill", [doc.Lead(title, said, "Drill")])


def standing_document(found: DrillStanding, notes: Sequence[str] = ()) -> doc.ReportDocument:
    """Topics with what was answered of each, and the sessions over time."""
    columns = [
        doc.words("topic"),
        doc.Column("questions", "kinds"),
        doc.Column("answered", "answered"),
        doc.Column("score_share", "score"),
    ]
    rows = [(one.topic, len(one.questions), one.answered, one.score) for one in found.topics]
    blocks: list[doc.Block] = [doc.DataTable(columns, rows, title="Topics")]
    if found.sessions:
        blocks.append(_over_time(found.sessions))
    else:
        blocks.append(doc.Paragraph("Nothing answered yet: `ridgeline drill`.", "dim"))
    blocks += [doc.Paragraph(note, "warning") for note in notes]
    return doc.ReportDocument("Drills", blocks)


def _over_time(sessions: Sequence[SessionScore]) -> doc.Block:
    latest = sessions[-_LATEST:]
    sparks = "".join(_SPARKS[round(one.score * (len(_SPARKS) - 1))] for one in latest)
    columns = [
        doc.words("began"),
        doc.Column("answered", "answered"),
        doc.Column("score_share", "score"),
        doc.Column("seconds", "an answer"),
    ]
    rows = [
        (one.began[:16].replace("T", " "), one.answered, one.score, one.seconds) for one in latest
    ]
    return doc.DataTable(columns, rows, title=f"Sessions {sparks}")


def _questions(count: int) -> str:
    return "1 question" if count == 1 else f"{count} questions"
