"""Durations as people write them: `90`, `90s`, `5m`, `1h30m`, `1.5h`, `2d`."""

from __future__ import annotations

import re
from typing import Any

import typer

_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "min": 60.0, "s": 1.0, "ms": 0.001}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(min|ms|[dhms])\s*", re.IGNORECASE)


def parse_duration(text: str | float) -> float:
    """Seconds of a duration; a number alone is seconds.

    >>> parse_duration("5m"), parse_duration("1h30m"), parse_duration("90"), parse_duration(2.5)
    (300.0, 5400.0, 90.0, 2.5)
    """
    if isinstance(text, (int, float)):
        return float(text)
    words = text.strip()
    try:
        return float(words)
    except ValueError:
        pass
    parts = _PART.findall(words)
    if not parts or _PART.sub("", words):
        raise typer.BadParameter(f"{text!r} is no duration; write 90, 90s, 5m, 1h30m or 1.5h")
    return sum(float(number) * _SECONDS[unit.lower()] for number, unit in parts)


def duration_option(help: str) -> Any:  # noqa: A002 - as typer has it
    """An option that takes a duration; every one is made here."""
    return typer.Option(
        parser=parse_duration,
        metavar="DURATION",
        help=f"{help} 90, 90s, 5m, 1h30m.",
    )


def duration_text(seconds: float) -> str:
    """A duration as a person writes it.

    >>> duration_text(900.0), duration_text(5400.0), duration_text(90.0), duration_text(0.5)
    ('15m', '1h30m', '1m30s', '0.5s')
    """
    if seconds < 60:
        return f"{seconds:g}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "m"), (rest, "s")]
    return "".join(f"{count}{unit}" for count, unit in parts if count)
