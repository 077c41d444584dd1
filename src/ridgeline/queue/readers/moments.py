"""Times and durations as traces write them."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

MISSING = {"", "none", "null", "nan", "unknown", "n/a", "-", "invalid"}
"""What stands for a time that there is none of."""
_NO_LIMIT = {"unlimited", "infinite", "not_set", "partition_limit"}
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d\d)(?::(\d\d(?:\.\d+)?))?")
_SPELT = re.compile(
    r"(?:(\d+(?:\.\d+)?) ?d(?:ays?)?,? ?)?(?:(\d+(?:\.\d+)?) ?h(?:ours?|rs?)?,? ?)?"
    r"(?:(\d+(?:\.\d+)?) ?m(?:in(?:ute)?s?)?,? ?)?(?:(\d+(?:\.\d+)?) ?s(?:ec(?:ond)?s?)?)?"
)
_WITH_DAYS = re.compile(r"(\d+) days?,? (\d+:\d\d:\d\d(?:\.\d+)?)")
_FORMATS = (
    "%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%d/%m/%Y %H:%M:%S", "%Y-%m-%d %H:%M:%S %Z",
    "%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M", "%m/%d/%Y %I:%M:%S %p", "%m/%d/%Y %I:%M %p",
)  # fmt: skip


def moment_seconds(text: str) -> float | None:
    """Seconds of a number, or of a date with or without a time zone; NaN: it is no time.

    None where there is no time. Dates without a zone are taken as of one and the same.

    >>> moment_seconds("90"), moment_seconds("1970-01-01T00:01:30"), moment_seconds("Unknown")
    (90.0, 90.0, None)
    """
    words = text.strip()
    if words.casefold() in MISSING:
        return None
    try:
        return _finite(float(words))
    except ValueError:
        pass
    try:
        found: datetime | None = datetime.fromisoformat(words)
    except ValueError:
        found = _by_format(words)
    if found is None:
        return math.nan
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def duration_seconds(text: str) -> float | None:
    """Seconds of a number, a clock as Slurm or Python writes it, or units; NaN: no duration.

    >>> duration_seconds("90"), duration_seconds("1-02:03:04"), duration_seconds("01:30")
    (90.0, 93784.0, 90.0)
    >>> duration_seconds("1 day, 2:03:04"), duration_seconds("1h30m"), duration_seconds("12 min")
    (93784.0, 5400.0, 720.0)
    """
    words = _WITH_DAYS.sub(r"\1-\2", text.strip())
    if words.casefold() in MISSING:
        return None
    try:
        return _finite(float(words))
    except ValueError:
        pass
    spelt = _SPELT.fullmatch(words)
    if spelt is not None:
        amounts = zip(spelt.groups(), (86400.0, 3600.0, 60.0, 1.0), strict=True)
        return sum(float(amount or 0) * unit for amount, unit in amounts)
    found = _CLOCK.fullmatch(words)
    if found is None:
        return math.nan
    days, first, second, third = found.groups()
    if third is None and days:  # hours and minutes
        return 86400.0 * int(days) + 3600.0 * int(first) + 60.0 * int(second)
    if third is None:  # minutes and seconds
        return 60.0 * int(first) + int(second)
    return 86400.0 * int(days or 0) + 3600.0 * int(first) + 60.0 * int(second) + float(third)


def time_limit_seconds(text: str) -> float | None:
    """Seconds of a time limit as sbatch takes it and squeue prints it; NaN: it is none.

    A bare number is minutes, and days may stand before hours alone. None where there is no limit.

    >>> time_limit_seconds("90"), time_limit_seconds("1-12"), time_limit_seconds("30:00")
    (5400.0, 129600.0, 1800.0)
    >>> time_limit_seconds("UNLIMITED")
    """
    words = text.strip()
    if words.casefold() in _NO_LIMIT or words.casefold() in MISSING:
        return None
    if words.isdigit():
        return 60.0 * int(words)
    days, mark, hours = words.partition("-")
    if mark and days.isdigit() and hours.isdigit():
        return 86400.0 * int(days) + 3600.0 * int(hours)
    return duration_seconds(words) if ":" in words else math.nan


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.nan


def _by_format(words: str) -> datetime | None:
    for one in _FORMATS:
        try:
            return datetime.strptime(words, one)  # noqa: DTZ007 - the caller adds the zone
        except ValueError:
            continue
    return None
