"""Columns of times that count in other units than seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from ridgeline import quantity
from ridgeline.queue.readers.columns import TIMES, FoundColumns

_EPOCHS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))
"""From which number on a moment is in nano-, micro- or milliseconds: in seconds it would be after
the year 5000."""
LONG_SECONDS = 30 * 86400.0
"""Half of a cluster's jobs hardly run longer: the numbers may be in another unit."""


def units_by_size(found: FoundColumns, rows: Sequence[Sequence[str]]) -> dict[str, float]:
    """Seconds of a unit, of columns of moments whose numbers are too large to be in seconds."""
    units = {}
    for name in TIMES[:3]:
        if name in found.places and name not in found.seconds:
            place = found.places[name]
            least = min(
                (
                    value
                    for cells in rows
                    if len(cells) > place and (value := _number(cells[place])) is not None
                ),
                default=0.0,
            )
            unit = next((unit for limit, unit in _EPOCHS if least >= limit), None)
            if unit is not None:
                units[name] = unit
    return units


def in_seconds(text: str, unit_seconds: float) -> str:
    """A cell as one of seconds; a date or a clock is one already.

    >>> in_seconds("1500", 1e-3), in_seconds("01:30:00", 60.0)
    ('1.5', '01:30:00')
    """
    value = _number(text)
    return text if value is None else repr(value * unit_seconds)


def told_units(seconds: Mapping[str, float], durations: Sequence[float]) -> list[str]:
    """What was taken for other units, and what may have to be."""
    notes = [
        f"Numbers of {name} are taken as {_UNITS[unit]}."
        for name, unit in seconds.items()
        if unit != 1.0
    ]
    usual = median(durations) if durations else 0.0
    if usual > LONG_SECONDS:
        notes.append(
            f"Half of the jobs run longer than {quantity.seconds(usual)}; if these are no seconds,"
            " say it: --column duration_seconds=NAME:ms, and so for the other times."
        )
    return notes


_UNITS = {1e-9: "nanoseconds", 1e-6: "microseconds", 1e-3: "milliseconds", 60.0: "minutes",
          3600.0: "hours", 86400.0: "days"}  # fmt: skip


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
