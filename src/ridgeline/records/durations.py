"""Durations and rates as people write them: `33ms`, `90s`, `1h30m`; `30Hz`, `30fps`."""

from __future__ import annotations

import math
import re

from ridgeline.errors import InputError

_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "min": 60.0, "s": 1.0, "ms": 1e-3,
            "us": 1e-6, "µs": 1e-6}  # fmt: skip
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_PART = re.compile(rf"{_NUMBER}\s*(min|ms|us|µs|[dhms])\s*", re.IGNORECASE)
_HERTZ = {"hz": 1.0, "khz": 1e3, "fps": 1.0}
_RATE = re.compile(rf"{_NUMBER}\s*(khz|hz|fps)", re.IGNORECASE)


def parse_duration(text: str | float, what: str = "") -> float:
    """Seconds of a duration; a number alone is seconds.

    Args:
        text: As a person writes it.
        what: What it is the duration of, for messages: `stage backbone: budget`.

    Raises:
        InputError: It is no duration.

    >>> parse_duration("5m"), parse_duration("1h30m"), parse_duration("33ms"), parse_duration(2.5)
    (300.0, 5400.0, 0.033, 2.5)
    """
    number = _number(text)
    if number is None:
        words = str(text).strip()
        parts = _PART.findall(words)
        if parts and not _PART.sub("", words):
            number = sum(float(amount) * _SECONDS[unit.lower()] for amount, unit in parts)
    if number is None or not math.isfinite(number):
        raise InputError(
            f"{_before(what)}{text!r} is no duration; write 33ms, 90, 90s, 5m, 1h30m or 1.5h"
        )
    return number


def parse_rate(text: str | float, what: str = "") -> float:
    """Hz of a rate; a number alone is Hz.

    Raises:
        InputError: It is no rate, or not above zero.

    >>> parse_rate("30Hz"), parse_rate("29.97 fps"), parse_rate("1kHz"), parse_rate(10)
    (30.0, 29.97, 1000.0, 10.0)
    """
    number = _number(text)
    if number is None and (found := _RATE.fullmatch(str(text).strip())):
        number = float(found[1]) * _HERTZ[found[2].lower()]
    if number is None or not 0 < number < math.inf:
        raise InputError(f"{_before(what)}{text!r} is no rate; write 30Hz, 29.97fps or 30")
    return number


def _number(text: str | float) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def _before(what: str) -> str:
    return f"{what}: " if what else ""
