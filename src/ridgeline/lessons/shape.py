"""The shape of a lesson: a file of `topics/` whose docstring begins with its title.

ORDER, WHY, ON_A_GPU, TASK    its place in the course, and a sentence for each of the others
predict()                     figures by kernel, from theory alone
observe()                     the same figures counted, and results beside references
calls(device)                 kernels to time on "cpu" or "cuda", by name; often none
grade(learner)                marks for the module that a learner wrote
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from ridgeline.errors import InputError
from ridgeline.records.lesson import LessonMark, LessonTable

Figures: TypeAlias = dict[str, dict[str, float]]
"""Kernel → figure → number."""
RESULT = "relative error"
"""How the marks of results begin."""
Calls: TypeAlias = dict[str, Callable[[], object]]
"""Kernel → a call of it that can be timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedLesson:
    """What running a lesson's kernels has shown."""

    figures: Figures
    results: list[tuple[Tensor, Tensor]]
    """Pairs of (found, expected)."""
    tables: list[LessonTable] = field(default_factory=list)


class Topic(Protocol):
    """A module of `topics/`."""

    ORDER: int
    WHY: str
    ON_A_GPU: str
    TASK: str

    def predict(self) -> Figures:
        """Figures from theory alone."""

    def observe(self) -> CountedLesson:
        """The same figures, counted."""

    def calls(self, device: str) -> Calls:
        """What to time there."""

    def grade(self, learner: ModuleType) -> Iterator[LessonMark]:
        """Marks for a learner's file."""


def marked(
    what: str, found: float, how: Literal["equal", "at most", "at least"], wanted: float
) -> LessonMark:
    """The mark for one number that was found."""
    passed = {
        "equal": abs(found - wanted) <= 1e-9 * abs(wanted),
        "at most": found <= wanted,
        "at least": found >= wanted,
    }[how]
    shown = found if math.isfinite(found) else None
    return LessonMark(what=what, found=shown, wanted=wanted, how=how, passed=passed)


def relative_error(found: Tensor, expected: Tensor) -> float:
    """How far a result is away, relative to the norm of what is expected; infinite if misshapen."""
    if found.shape != expected.shape:
        return float("inf")
    exact = expected.detach().double()
    size = float(exact.norm()) or 1.0
    away = float((found.detach().double() - exact).norm()) / size
    return float("inf") if math.isnan(away) else away


def right(found: Any, expected: Tensor, allowed: float = 1e-5, what: str = RESULT) -> LessonMark:
    """The mark that each exercise begins with: the result is that of the reference.

    Raises:
        InputError: There is no result, or one that is no numbers.
    """
    if found is None:
        raise InputError("solve() returned nothing; return the result that the task asks for")
    if not isinstance(found, Tensor):
        try:
            found = torch.as_tensor(found)
        except (TypeError, ValueError, RuntimeError):
            kind = type(found).__name__
            raise InputError(f"solve() returned {kind}; return the numbers of the task") from None
    return marked(what, relative_error(found, expected), "at most", allowed)


def solution(learner: ModuleType) -> Callable[..., Any]:
    """The function `solve` of a learner's file.

    Raises:
        InputError: There is none.
    """
    found = getattr(learner, "solve", None)
    if not callable(found):
        raise InputError("defines no solve(); begin with the file that the exercise starts from")
    made: Callable[..., Any] = found
    return made
