"""Answers beside the right ones."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.drills.questions import written
from ridgeline.drills.solved import LETTERS, RightOption, RightQuantity, SolvedQuestion
from ridgeline.drills.typed import read_option, read_quantity
from ridgeline.errors import InputError
from ridgeline.records.drill import (
    IN_TIME_SECONDS,
    AnsweredAsk,
    Ask,
    DrillGrade,
    DrillResult,
)

LATE_SCORE = 0.5


def read_answer(asked: SolvedQuestion, place: int, text: str) -> float:
    """One typed answer as a number, or as the place of an option.

    Raises:
        InputError: It cannot be read.
    """
    ask = asked.question.asks[place]
    if ask.options:
        return read_option(text, ask.options)
    return read_quantity(text, ask.unit)


def grade(
    asked: SolvedQuestion, answers: Sequence[str], seconds: float | None = None
) -> DrillGrade:
    """A whole question; an answer that is missing or cannot be read is wrong.

    >>> from ridgeline.drills.bank import question_of
    >>> one = question_of("adam-states:3")
    >>> grade(one, [one.solution[-1].result], 30.0).score
    1.0
    """
    answered = [
        _answered(asked, place, answers[place] if place < len(answers) else "")
        for place in range(len(asked.right))
    ]
    share = sum(one.correct for one in answered) / len(answered)
    late = seconds is not None and seconds > IN_TIME_SECONDS
    return DrillGrade(
        id=asked.question.id,
        topic=asked.question.topic,
        score=share * (LATE_SCORE if late else 1.0),
        seconds=seconds,
        answered=answered,
        solution=list(asked.solution),
    )


def result_of(grades: Sequence[DrillGrade]) -> DrillResult:
    """The mean of several."""
    total = sum(one.score for one in grades)
    return DrillResult(score=total / len(grades) if grades else 0.0, grades=list(grades))


def right_answer(ask: Ask, right: RightQuantity | RightOption) -> str:
    """The right answer in words."""
    if isinstance(right, RightOption):
        return f"{LETTERS[right.number]}) {ask.options[right.number]}"
    return written(ask.unit, right.value)


def _answered(asked: SolvedQuestion, place: int, text: str) -> AnsweredAsk:
    ask, right = asked.question.asks[place], asked.right[place]
    shown = right_answer(ask, right)
    if not text.strip():
        return AnsweredAsk(given="", right=shown, correct=False, remark="no answer")
    try:
        value = read_answer(asked, place, text)
    except InputError as error:
        return AnsweredAsk(given=text, right=shown, correct=False, remark=str(error))
    if isinstance(right, RightOption):
        return AnsweredAsk(given=text, right=shown, correct=value == right.number)
    off = value / right.value - 1.0
    return AnsweredAsk(given=text, right=shown, correct=abs(off) <= right.tolerance, error=off)
