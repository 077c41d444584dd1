"""What `ridgeline lesson` teaches and grades: predictions beside what was counted, and marks."""

from __future__ import annotations

from typing import Literal

import msgspec


class LessonFigure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One number of one kernel: what theory says, and what was counted."""

    kernel: str
    """Which kernel, and with which setting: `strided by 8`."""
    figure: str
    """What the number is: `sectors of a request`."""
    predicted: float
    counted: float


class LessonTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long one kernel took on this machine."""

    kernel: str
    seconds: float
    """The median of several, which took turns."""


class LessonTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something to look at beside a lesson's figures."""

    title: str
    heads: list[str]
    rows: list[list[str]]


class Lesson(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One lesson as it was run here."""

    name: str
    title: str
    why: str
    """The mechanism, in one sentence."""
    figures: list[LessonFigure]
    times: list[LessonTime]
    tables: list[LessonTable]
    largest_error: float
    """How far the kernels' results are from the reference, relative to its norm."""
    results: int
    """How many results were compared with a reference."""
    device: str
    """The device that it ran on: `cpu`, or a GPU's name."""
    on_a_gpu: str
    """What a GPU would add, in a line."""
    task: str
    """What the exercise asks for."""
    twin: str = ""
    """A file of the same kernels in CUDA C++; empty where there is none."""


class LessonMark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that an exercise asks for."""

    what: str
    found: float | None
    """None where no number came of it (NaN, or one beyond all bounds)."""
    wanted: float
    how: Literal["equal", "at most", "at least"]
    passed: bool


class LessonGrade(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a learner's file did."""

    name: str
    file: str
    passed: bool
    marks: list[LessonMark]


class LessonTitle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One lesson of the list."""

    name: str
    title: str


class LessonList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every lesson, in the order in which they build on each other."""

    lessons: list[LessonTitle]


class LessonExercise(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The starting file of an exercise, as it was written."""

    name: str
    file: str
