"""The command `ridgeline lesson` teaches how GPUs reach their limits, and marks exercises."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.show import Json, output_file
from ridgeline.errors import InputError, Regression

if TYPE_CHECKING:
    from ridgeline.records.lesson import LessonExercise


def lesson(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One lesson. Default: a list of all.")
    ] = None,
    exercise: Annotated[
        Path | None, output_file("FILE.py", "Write the starting file of the lesson's exercise.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option(metavar="FILE.py", help="Mark your answer to the exercise.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the lessons.")] = False,
    json: Json = False,
) -> None:
    """A bad and a good kernel, predicted and counted; --check marks yours: exit 3 if it misses."""
    from ridgeline.cli.show import progress, show_answer
    from ridgeline.lessons import conduct
    from ridgeline.records.lesson import LessonList
    from ridgeline.report.views import lesson as views

    if name is None or listed:
        if exercise is not None or check is not None:
            raise InputError("--exercise and --check need the name of a lesson before them")
        known = LessonList(lessons=conduct.lessons())
        show_answer(known, views.list_document(known), json=json)
    elif exercise is not None and check is not None:
        raise InputError("--exercise and --check: one writes a file, one reads it; give one")
    elif exercise is not None:
        written = _write(name, exercise)
        show_answer(written, views.exercise_document(written), json=json)
    elif check is not None:
        marks = conduct.grade(name, check)
        show_answer(marks, views.grade_document(marks), json=json)
        if not marks.passed:
            missed = sum(not one.passed for one in marks.marks)
            raise Regression(f"{check}: {missed} of {len(marks.marks)} marks are missed")
    else:
        with progress() as on_progress:
            on_progress(f"running the lesson {conduct.lesson(name).name}")
            found = conduct.teach(name)
        show_answer(found, views.lesson_document(found), json=json)


def _write(name: str, file: Path) -> LessonExercise:
    from ridgeline.cli.show import write_text
    from ridgeline.lessons import conduct
    from ridgeline.records.lesson import LessonExercise

    text = conduct.exercise(name)
    if file.exists() and file.is_file():
        raise InputError(f"--exercise {file}: is there already; name a new file")
    write_text("--exercise", file, text)
    return LessonExercise(name=conduct.lesson(name).name, file=str(file))
