"""`ridgeline drill` asks timed questions, grades them, and shows the worked solution.

Answers come line by line from stdin, a terminal or not. Every graded answer is remembered at once,
so that Ctrl-C and the end of stdin lose nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.show import Json
from ridgeline.errors import InputError

if TYPE_CHECKING:
    from ridgeline.drills.history import DrillHistory
    from ridgeline.drills.solved import SolvedQuestion
    from ridgeline.records.drill import DrillGrade

_MOST = 1000
_UNREADABLE = 3
"""An answer that cannot be read is asked for so often."""


def drill(
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="Ask of this topic only; repeatable. See --list."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=_MOST, help="How many questions are asked.")] = 5,
    seed: Annotated[
        int | None,
        typer.Option(help="The seed of questions and numbers. Default: another each time."),
    ] = None,
    question: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Ask exactly this one, as zero-states:7; repeatable."),
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json", help="Grade what --json printed, its `answers` filled in."
        ),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List topics and your score over time; ask nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Ask questions as staff interviews do: two minutes each, graded, with the solution worked."""
    from ridgeline.cli.show import print_json, show_answer
    from ridgeline.drills.grading import result_of
    from ridgeline.drills.history import DrillHistory, standing_of
    from ridgeline.records.drill import DrillSheet
    from ridgeline.report.views.drill import result_document, standing_document

    if answers is not None:
        found = result_of(_graded(answers))
        show_answer(found, result_document(found), json=json)
        return
    progress = DrillHistory()
    if list_:
        standing = standing_of(progress.read())
        _tell(progress)
        show_answer(standing, standing_document(standing), json=json)
        return
    asked = _chosen(topic or [], count, seed, question or [])
    if json:
        print_json(DrillSheet(questions=[one.question for one in asked]))
        return
    _session(asked, progress)


def _chosen(
    topics: Sequence[str], count: int, seed: int | None, identities: Sequence[str]
) -> list[SolvedQuestion]:
    from ridgeline.drills.bank import pick, question_of

    if identities:
        return [question_of(one) for one in identities]
    return pick(time.time_ns() if seed is None else seed, count, topics)


def _graded(path: Path) -> list[DrillGrade]:
    from ridgeline.drills.bank import question_of
    from ridgeline.drills.grading import grade
    from ridgeline.records.drill import DrillSheet
    from ridgeline.records.input_file import read_json

    cure = "give what `ridgeline drill --json` printed, with `answers` filled in"
    sheet = read_json(path, DrillSheet, option="--answers", cure=cure)
    if not sheet.questions:
        raise InputError(f"--answers {path}: there are no questions in it; {cure}")
    try:
        return [grade(question_of(one.id), one.answers) for one in sheet.questions]
    except InputError as error:
        raise InputError(f"--answers {path}: {error}") from None


def _session(asked: Sequence[SolvedQuestion], progress: DrillHistory) -> None:
    """Ask one after another; whatever ends it, what was graded is summed up."""
    from ridgeline.cli.show import print_document, say
    from ridgeline.drills.history import standing_of
    from ridgeline.report.views.drill import grade_document, session_document

    before = standing_of(progress.read()).sessions
    _tell(progress)
    grades: list[DrillGrade] = []
    try:
        for place, one in enumerate(asked, start=1):
            graded = _ask(one, place, len(asked))
            if graded is None:
                break
            grades.append(graded)
            progress.add(graded)
            _tell(progress)
            print_document(grade_document(graded))
            say("")
    finally:
        if grades:
            best = max((one.score for one in before), default=None)
            print_document(session_document(grades, best))
    if not grades:
        raise InputError(
            "stdin ended before an answer; answer line by line, or use --json and --answers FILE"
        )
    if len(grades) < len(asked):
        say(f"stdin ended after {len(grades)} of {len(asked)} questions", err=True)


def _ask(asked: SolvedQuestion, place: int, count: int) -> DrillGrade | None:
    """One question; None where stdin ended before it was answered."""
    from ridgeline.cli.show import print_document
    from ridgeline.drills.grading import grade
    from ridgeline.report.views.drill import options_document, question_document

    print_document(question_document(asked.question, place, count))
    began = time.monotonic()
    typed: list[str] = []
    for number, ask in enumerate(asked.question.asks):
        if ask.options:
            print_document(options_document(ask.options))
        answer = _typed(asked, number)
        if answer is None:
            return None
        typed.append(answer)
    return grade(asked, typed, time.monotonic() - began)


def _typed(asked: SolvedQuestion, number: int) -> str | None:
    """One answer; who types something unreadable is told why and may type again."""
    from ridgeline.cli.show import say
    from ridgeline.drills.grading import read_answer

    text = ""
    for _ in range(_UNREADABLE):
        say(asked.question.asks[number].prompt)
        line = sys.stdin.readline()
        if not line:
            return None
        text = line.strip()
        if not text:  # passed over
            break
        try:
            read_answer(asked, number, text)
        except InputError as error:
            say(str(error), err=True)
        else:
            break
    return text


def _tell(progress: DrillHistory) -> None:
    from ridgeline.cli.show import say

    while progress.notes:
        say(progress.notes.pop(0), err=True)
