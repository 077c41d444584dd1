"""Shares as people write them: `0.1%`, `0.1 %`, `0.001`."""

from __future__ import annotations

import math

import typer


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
