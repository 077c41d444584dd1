"""A question together with its answers, as the rest of the room hands it on."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.records.drill import DrillQuestion, WorkedStep

CHOICE = "choice"
LETTERS = "abcdefgh"


@dataclass(frozen=True, slots=True, kw_only=True)
class RightQuantity:
    """The right answer of a question of arithmetic."""

    value: float
    tolerance: float
    """The relative difference that still counts as right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RightOption:
    """The right answer of a choice."""

    number: int
    """Its place among the options, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvedQuestion:
    """A question, its answers in the order of its asks, and how they are found."""

    question: DrillQuestion
    right: tuple[RightQuantity | RightOption, ...]
    solution: tuple[WorkedStep, ...]
