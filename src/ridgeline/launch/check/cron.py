"""Cron schedules as CronJob reads them (robfig/cron standard parser).

Example:
    >>> schedule_problem("*/5 2-4 * * MON")
    ''
    >>> schedule_problem("61 * * * *")
    'minute: 61 is outside 0-59'
"""

from __future__ import annotations

import re

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 6, _DAYS),
)
_NAMED = frozenset(
    {"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"}
)
_EVERY = re.compile(r"@every (\d+(\.\d*)?(ns|us|ms|s|m|h))+")


def schedule_problem(schedule: str) -> str:
    """What is wrong with a schedule, or the empty text."""
    if schedule.startswith("@"):
        known = schedule in _NAMED or _EVERY.fullmatch(schedule)
        return "" if known else f"unrecognized descriptor: {schedule}"
    parts = schedule.split()
    if len(parts) != len(_FIELDS):
        return f"expected exactly 5 fields, found {len(parts)}"
    for part, (what, low, high, words) in zip(parts, _FIELDS, strict=True):
        for piece in part.split(","):
            wrong = _piece_problem(piece, low, high, words)
            if wrong:
                return f"{what}: {wrong}"
    return ""


def _piece_problem(piece: str, low: int, high: int, words: tuple[str, ...]) -> str:
    span, slash, step = piece.partition("/")
    if slash and (not step.isdigit() or int(step) == 0):
        return f"{step!r} is not a step"
    if span in ("*", "?"):
        return ""
    numbers = []
    for text in span.split("-"):
        if text.lower() in words:
            numbers.append(words.index(text.lower()) + low)
        elif text.isdigit():
            numbers.append(int(text))
        else:
            return f"{text!r} is not a number"
    if len(numbers) > 2 or numbers[0] > numbers[-1]:
        return f"{span} is not a range"
    for number in numbers:
        if not low <= number <= high:
            return f"{number} is outside {low}-{high}"
    return ""
