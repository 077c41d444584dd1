"""Answers beside the right ones.

Answers are read as people type them: `312 GB`, `0.29TiB`, `41%`, `1.7 ms`, `$16,300`, `2e13`.

Units are read without regard to case where that leaves one meaning; a number alone is in the base
unit that was asked for (bytes, seconds, …). GB is 1e9 bytes, GiB is 2**30.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ridgeline.drills.questions import written
from ridgeline.drills.solved import LETTERS, RightOption, RightQuantity, SolvedQuestion
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


_SI = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15, "e": 1e18, "z": 1e21,
       "y": 1e24}  # fmt: skip
_BYTES = {f"{prefix}{unit}": size for prefix, size in _SI.items() if size < 1e20
          for unit in ("b", "byte", "bytes")} | {
    f"{prefix}ib": 2.0 ** (10 * (power + 1)) for power, prefix in enumerate("kmgtpe")
}  # fmt: skip
_SECONDS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "second": 1.0,
    "seconds": 1.0, "min": 60.0, "minute": 60.0, "minutes": 60.0, "h": 3600.0, "hour": 3600.0,
    "hours": 3600.0, "d": 86400.0, "day": 86400.0, "days": 86400.0,
}  # fmt: skip
_NUMBERS = {"": 1.0, "k": 1e3, "thousand": 1e3, "m": 1e6, "million": 1e6, "g": 1e9, "b": 1e9,
            "billion": 1e9, "t": 1e12, "trillion": 1e12}  # fmt: skip
_FLOPS = {f"{prefix}{unit}": size for prefix, size in _SI.items()
          for unit in ("flop", "flops")}  # fmt: skip
_RATES = {f"{prefix}{unit}": size for prefix, size in _SI.items()
          for unit in ("flops", "flop/s", "flops/s")}  # fmt: skip
_JOULES = {f"{prefix}j": size for prefix, size in _SI.items() if size < 1e20} | {
    f"{prefix}wh": size * 3600.0 for prefix, size in _SI.items() if size < 1e20
}
UNITS: dict[str, dict[str, float]] = {
    "bytes": _BYTES,
    "seconds": _SECONDS,
    "share": {"%": 0.01, "percent": 0.01},
    "ratio": {"x": 1.0, "×": 1.0, "times": 1.0},
    "count": _NUMBERS,
    "number": {},
    "flops": _FLOPS,
    "flops_per_second": _RATES,
    "flops_per_byte": {"flop/b": 1.0, "flops/b": 1.0, "flop/byte": 1.0, "flops/byte": 1.0},
    "usd": _NUMBERS | {"usd": 1.0, "dollars": 1.0},
    "joules": _JOULES,
}
"""What is asked → its units, in small letters, and their sizes in the base unit."""
EXAMPLES = {
    "bytes": "312 GB or 0.29 TiB", "seconds": "1.7 ms, 90 s or 4.8 days", "share": "41%",
    "ratio": "2.8x", "count": "1420", "number": "0.0012", "flops": "8.4e22",
    "flops_per_second": "20 TFLOP/s", "flops_per_byte": "295", "usd": "$16,300",
    "joules": "1290 kWh",
}  # fmt: skip
"""What is asked → an answer as one may type it."""
_TYPED = re.compile(
    r"(?P<number>[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?(?:e[+-]?\d+)?)\s*(?P<unit>[^\d.,].*)?",
    re.IGNORECASE,
)
_LONGEST = 80


def read_quantity(text: str, unit: str) -> float:
    """The number that was typed, in the base unit of what is asked.

    >>> read_quantity("312 GB", "bytes"), read_quantity("0.5TiB", "bytes") == 2**39
    (312000000000.0, True)
    >>> read_quantity("50%", "share"), read_quantity("1.7 ms", "seconds")
    (0.5, 0.0017)
    >>> read_quantity("$1,420", "usd"), read_quantity("2e13", "flops")
    (1420.0, 20000000000000.0)

    Raises:
        InputError: It is no number, or its unit measures something else.
    """
    words = text.strip()[:_LONGEST].strip()
    if unit == "usd":
        words = words.removeprefix("$").strip()
    found = _TYPED.fullmatch(words.replace("−", "-"))
    number = found["number"] if found else ""
    if not found or not re.search(r"\d", number):
        raise InputError(f"{text[:_LONGEST]!r} is no number; write {EXAMPLES[unit]}")
    value = float(number.replace(",", ""))
    name = (found["unit"] or "").strip()
    return _finite(text, unit, value * _size(text, name, unit, value))


def _size(text: str, name: str, unit: str, value: float) -> float:
    if not name:
        # Nobody types 41 and means 4,100 %.
        return 0.01 if unit == "share" and abs(value) > 1.0 else 1.0
    size = UNITS[unit].get(name.lower().replace(" ", ""))
    if size is None:
        raise InputError(
            f"{text[:_LONGEST]!r}: {name} does not measure {_called(unit)}; write {EXAMPLES[unit]}"
        )
    return size


def _called(unit: str) -> str:
    return {"usd": "money", "seconds": "time", "joules": "energy"}.get(unit, unit.replace("_", " "))


def _finite(text: str, unit: str, value: float) -> float:
    if not math.isfinite(value):
        raise InputError(f"{text[:_LONGEST]!r} is past all bounds; write {EXAMPLES[unit]}")
    return value


def read_option(text: str, options: list[str]) -> int:
    """Which option was typed: its letter, its number from 1, or its words.

    >>> read_option("B", ["compute", "memory"]), read_option("memory", ["compute", "memory"])
    (1, 1)

    Raises:
        InputError: It is none of them.
    """
    words = text.strip().lower().rstrip(".)")
    letters = "abcdefgh"[: len(options)]
    if len(words) == 1 and words in letters:
        return letters.index(words)
    if words.isdecimal() and 1 <= int(words[:4]) <= len(options):
        return int(words) - 1
    spelled = [one.lower().rstrip(".") for one in options]
    if words in spelled:
        return spelled.index(words)
    raise InputError(f"{text[:_LONGEST]!r} is no option; write one of {', '.join(letters)}")
