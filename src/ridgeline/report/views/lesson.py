"""What `ridgeline lesson` shows: the list, one lesson, an exercise's start, and marks."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.records.lesson import (
    Lesson,
    LessonExercise,
    LessonFigure,
    LessonGrade,
    LessonList,
    LessonTable,
)
from ridgeline.report import document as doc


def list_document(found: LessonList) -> doc.ReportDocument:
    """Names and titles, in the order of the course."""
    columns = (doc.name("lesson"), doc.words("title", "what it shows"))
    rows = [(one.name, one.title) for one in found.lessons]
    return doc.ReportDocument(
        "Lessons",
        [
            doc.DataTable(columns, rows, title="Lessons"),
            doc.Paragraph("Begin with: ridgeline lesson launch-geometry", tone="dim"),
        ],
    )


def lesson_document(found: Lesson) -> doc.ReportDocument:
    """Why, predicted beside counted, times, and the exercise."""
    equal = [one for one in found.figures if _is_met(one)]
    title = f"{len(equal)} of {len(found.figures)} predictions met"
    blocks: list[doc.Block] = [
        doc.Lead(found.title.rstrip("."), title, found.name),
        doc.Paragraph(found.why),
        _figures(found.figures),
    ]
    if found.results:
        blocks.append(
            doc.Paragraph(
                f"{found.results} results compared with their references: at most "
                f"{found.largest_error:.1e} of their norm away",
                tone="dim",
            )
        )
    blocks += [_table(one) for one in found.tables]
    if found.times:
        columns = (doc.words("kernel"), doc.Column("seconds", "time"))
        times = [(one.kernel, one.seconds) for one in found.times]
        where = "this CPU" if found.device == "cpu" else f"this CPU and {found.device}"
        blocks.append(doc.DataTable(columns, times, title=f"Measured on {where}"))
    last: list[doc.Words] = []
    if found.device == "cpu":
        last.append(f"On a GPU: {found.on_a_gpu}")
    if found.twin:
        last.append(f"In CUDA C++: {found.twin}")
    last.append(f"Exercise: {found.task}")
    last.append(
        f"  ridgeline lesson {found.name} --exercise mine.py, then --check mine.py marks it"
    )
    blocks.append(doc.Lines(last))
    return doc.ReportDocument("Lesson", blocks)


def _is_met(one: LessonFigure) -> bool:
    return abs(one.predicted - one.counted) <= 1e-9 * abs(one.predicted)


def _figures(figures: Sequence[LessonFigure]) -> doc.DataTable:
    """A kernel's name stands once, above its figures."""
    columns = (
        doc.words("kernel"),
        doc.words("figure"),
        *doc.figures("predicted", "counted"),
        doc.words("met", ""),
    )
    rows, before = [], ""
    for one in figures:
        name = "" if one.kernel == before else one.kernel
        before = one.kernel
        met = doc.Phrase("=", "good") if _is_met(one) else doc.Phrase("differs", "warning")
        cells = (_number(one.predicted), _number(one.counted))
        rows.append(doc.TableRow((name, one.figure, *cells, (met,))))
    return doc.DataTable(columns, rows, lead=2)


def _number(value: float | None) -> str:
    """A count in full, another number with four digits.

    >>> _number(4096.0), _number(0.125), _number(5.96e-08), _number(None)
    ('4,096', '0.125', '5.96e-08', 'no number')
    """
    if value is None:
        return "no number"
    if value == round(value) and abs(value) < 1e15:
        return f"{round(value):,}"
    return f"{value:.4g}"


def _table(one: LessonTable) -> doc.DataTable:
    first, *others = one.heads
    columns = (doc.words(first), *(doc.words(head) for head in others))
    return doc.DataTable(columns, [tuple(row) for row in one.rows], title=one.title)


def exercise_document(found: LessonExercise) -> doc.ReportDocument:
    """Where the starting file is, and what to do with it."""
    lines: list[doc.Words] = [
        f"{found.file} is written: it is right, and wasteful",
        f"when you have mended it: ridgeline lesson {found.name} --check {found.file}",
    ]
    return doc.ReportDocument("Exercise", [doc.Lines(lines)])


def grade_document(found: LessonGrade) -> doc.ReportDocument:
    """Each mark with what was found and what was wanted."""
    passed = sum(one.passed for one in found.marks)
    chip = doc.Phrase("passed", "good") if found.passed else doc.Phrase("not yet", "warning")
    columns = (
        doc.words("what"),
        doc.Column("found", "found"),
        doc.words("wanted"),
        doc.words("passed", ""),
    )
    rows = [
        (
            one.what,
            _number(one.found),
            f"{one.how} {_number(one.wanted)}",
            (doc.Phrase("ok", "good") if one.passed else doc.Phrase("missed", "bad"),),
        )
        for one in found.marks
    ]
    title = f"{passed} of {len(found.marks)} marks"
    return doc.ReportDocument(
        "Marks", [doc.Lead(title, found.name, found.file, chip=chip), doc.DataTable(columns, rows)]
    )
