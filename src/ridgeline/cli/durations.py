"""Durations and shares as people write them: `90`, `5m`, `1h30m`, `1.5h`, `2d`; `0.1%`, `0.001`."""

from __future__ import annotations

import math
from typing import Any

import typer

from ridgeline.errors import InputError
from ridgeline.records import durations


def parse_share(text: str | float) -> float:
    """A share from 0 to 1.

    >>> parse_share("0.1%"), parse_share("12.5 %"), parse_share("0.001"), parse_share(0.5)
    (0.001, 0.125, 0.001, 0.5)
    """
    if isinstance(text, (int, float)):
        return float(text)
    words = text.strip()
    percents = words.endswith("%")
    try:
        value = float(words.removesuffix("%"))
    except ValueError:
        value = math.nan
    share = value / 100 if percents else value
    if not 0 <= share <= 1:
        raise typer.BadParameter(f"{text!r} is no share; write 0.1% or 0.001")
    return share


def parse_duration(text: str | float) -> float:
    """Seconds of a duration, as an option reads it; a number alone is seconds.

    >>> parse_duration("5m"), parse_duration("1h30m"), parse_duration("90"), parse_duration(2.5)
    (300.0, 5400.0, 90.0, 2.5)
    """
    try:
        return durations.parse_duration(text)
    except InputError as error:
        raise typer.BadParameter(str(error)) from error


def duration_option(help: str) -> Any:  # noqa: A002 - as typer has it
    """An option that takes a duration; every one is made here."""
    return typer.Option(
        parser=parse_duration,
        metavar="DURATION",
        help=f"{help} As 90 (seconds), 33ms, 5m or 1h30m.",
    )


def duration_text(seconds: float) -> str:
    """A duration as a person writes it.

    >>> duration_text(900.0), duration_text(5400.0), duration_text(90.0), duration_text(0.033)
    ('15m', '1h30m', '1m30s', '33ms')
    """
    if 0 < seconds < 1:
        return f"{1e3 * seconds:g}ms"
    if seconds < 60:
        return f"{seconds:g}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "m"), (rest, "s")]
    return "".join(f"{count}{unit}" for count, unit in parts if count)
