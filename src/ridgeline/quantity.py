"""Numbers as people read them: three significant digits, SI prefixes (GB is 1e9 bytes).

Every room formats through this module, so that one second reads the same in a finding, a table and
an error message. A value is rounded before its unit is chosen: 0.99996 s is `1.00 s`, and no
duration below a second reads `1000 ms`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY_PREFIXES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_DURATIONS = ((36_000.0, 3600.0, "h"), (600.0, 60.0, "min"), (1.0, 1.0, "s"),
              (1e-3, 1e-3, "ms"), (1e-6, 1e-6, "µs"))  # fmt: skip
"""From so many seconds on, a duration is written in a unit of so many seconds."""
_MOST_PLACES = 6
MOST_APART = 20.0
"""Where the bounds of a multiplier are further apart, upper over lower, that one says nothing
which is as far from 1."""


def digits(value: float) -> str:
    """Three significant digits without exponent.

    >>> digits(213.44), digits(9.8765), digits(0.04321), digits(12345.0), digits(0.99996)
    ('213', '9.88', '0.0432', '12345', '1.00')
    """
    if not math.isfinite(value):
        return "–" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if value == 0:
        return "0"
    if abs(value) >= 99.95:
        return f"{value:.0f}".replace("-", "−")
    places = 2 - math.floor(math.log10(abs(_three_digits(value))))
    text = f"{value:.{places}f}" if places <= _MOST_PLACES else f"{value:.3g}"
    return text.replace("-", "−")


def seconds(value: float) -> str:
    """A duration as people read it.

    >>> seconds(0.2134), seconds(75.0), seconds(4e-6), seconds(0.0), seconds(90_000.0)
    ('213 ms', '75.0 s', '4.00 µs', '0 s', '25.0 h')
    >>> seconds(0.99996), seconds(599.9), seconds(0.9999e-3)
    ('1.00 s', '10.0 min', '1.00 ms')
    """
    if value == 0 or not math.isfinite(value):
        return f"{digits(value)} s"
    size = abs(_three_digits(value))
    for least, unit, name in _DURATIONS:
        if size >= least * (1 - 1e-9):
            return f"{digits(value / unit)} {name}"
    return f"{digits(value * 1e9)} ns"


def microseconds(value: float) -> str:
    """A duration that is counted in microseconds, as traces count.

    >>> microseconds(12.34), microseconds(999_960.0)
    ('12.3 µs', '1.00 s')
    """
    return seconds(value * 1e-6)


def scaled(value: float, unit: str) -> str:
    """A quantity with an SI prefix.

    >>> scaled(1.02e11, "FLOP/s"), scaled(512e6, "B"), scaled(12.0, "B"), scaled(999.6e6, "B")
    ('102 GFLOP/s', '512 MB', '12 B', '1.00 GB')
    """
    for size, prefix in _PREFIXES:
        if abs(value) >= 0.9995 * size:
            return f"{digits(value / size)} {prefix}{unit}"
    return f"{count(value)} {unit}"


def memory(value: float) -> str:
    """A number of bytes, in powers of 1000.

    >>> memory(1_240_000_000)
    '1.24 GB'
    """
    return scaled(value, "B")


def binary_memory(value: float) -> str:
    """A number of bytes, in powers of 1024: what memories and caches are sold in.

    >>> binary_memory(80 * 2**30), binary_memory(49_152), binary_memory(7)
    ('80 GiB', '48 KiB', '7 B')
    """
    for size, unit in _BINARY_PREFIXES:
        if value >= size:
            whole = value % size == 0
            return f"{value / size:,.0f} {unit}" if whole else f"{value / size:.4g} {unit}"
    return f"{value:,.0f} B"


def ratio(value: float) -> str:
    """A multiplier; two decimals, because a third is noise.

    >>> ratio(1.5), ratio(12.345), ratio(0.931), ratio(9.996)
    ('1.50×', '12.3×', '0.93×', '10.0×')
    """
    if not math.isfinite(value):
        return "∞×"
    return f"{value:.2f}×" if abs(value) < 9.995 else f"{digits(value)}×"


def ratio_range(low: float, high: float) -> str:
    """The two ends of a foretold multiplier; one where they read the same.

    >>> ratio_range(1.18, 1.44), ratio_range(1.501, 1.499)
    ('1.18–1.44×', '1.50×')
    """
    return ratio(high) if ratio(low) == ratio(high) else f"{ratio(low)[:-1]}–{ratio(high)}"


def interval(low: float | None, high: float | None) -> str:
    """The bounds of a multiplier; a third decimal where it says on which side of 1 a bound is.

    >>> interval(1.48, 1.57), interval(1.004, 1.02), interval(0.0, float("inf"))
    ('[1.48, 1.57]', '[1.004, 1.020]', '[–, –]')
    >>> interval(0.0, 1.2), interval(0.2, 34.0), interval(1e-7, 9.9e6)
    ('[–, 1.20]', '[0.20, –]', '[–, –]')
    """
    if low is None or high is None or (low <= 0 and not math.isfinite(high)):
        return "[–, –]"
    if MOST_APART * low < high < math.inf:
        lower = ratio(low)[:-1] if MOST_APART * low > 1 else "–"
        upper = ratio(high)[:-1] if high < MOST_APART else "–"
        return f"[{lower}, {upper}]"
    if min(abs(low - 1), abs(high - 1)) < 0.01 and high < 10:
        return f"[{low:.3f}, {high:.3f}]"
    return f"[{ratio(low)[:-1]}, {ratio(high)[:-1]}]"


def hours(seconds: float) -> str:
    """A long time, in hours whatever its length, so that a column of them can be compared.

    >>> hours(1.17e6), hours(5.4e6), hours(1800.0)
    ('325 h', '1,500 h', '0.500 h')
    """
    value = seconds / 3600
    return f"{value:,.0f} h" if value >= 999.5 else f"{digits(value)} h"


def usd(value: float) -> str:
    """An amount of money: three significant digits from a hundred dollars, cents below.

    >>> usd(16311.0), usd(50_000.0), usd(213.4), usd(9.5), usd(0.00123)
    ('$16,300', '$50,000', '$213', '$9.50', '$0.00123')
    """
    if not math.isfinite(value):
        return f"${digits(value)}"
    if value >= 99.995:
        return f"${_three_digits(value):,.0f}"
    return f"${value:.2f}" if value >= 0.0995 or value == 0 else f"${digits(value)}"


def percent(fraction: float, decimals: int | None = None) -> str:
    """A share; without `decimals`, whole percents where a fraction of one would not be read.

    >>> percent(0.142), percent(0.0043), percent(0.02), percent(0.98765, 2)
    ('14 %', '0.4 %', '2 %', '98.77 %')
    """
    value = fraction * 100
    if decimals is not None:
        text = f"{value:.{decimals}f}"
    else:
        text = f"{value:.1f}".removesuffix(".0") if abs(value) < 9.95 else f"{value:.0f}"
    return f"{text} %".replace("-", "−")


def change(fraction: float, decimals: int = 1) -> str:
    """A relative difference, with its sign.

    >>> change(0.2), change(-0.0312), change(0.00456, 2)
    ('+20.0 %', '−3.1 %', '+0.46 %')
    """
    text = f"{100 * fraction:+.{decimals}f}"
    return f"{text if float(text) else text[1:]} %".replace("-", "−")


_NOT_COUNTED = 1e18
"""A number from here on is read by its exponent."""
_NO_TENTH = 0.1
"""Fewer of a thing than this would be none at one decimal: a sample in a minute is not 0."""


def count(value: float) -> str:
    """A number of things, thousands apart.

    >>> count(1420.0), count(4970.3), count(0.5), count(0.0192)
    ('1,420', '4,970', '0.5', '0.0192')
    """
    if not math.isfinite(value) or 0 < abs(value) < _NO_TENTH:
        return digits(value)
    rounded = round(value, 1)
    return f"{rounded:,.0f}" if rounded == int(rounded) or rounded >= 100 else f"{rounded:.1f}"


def several(value: float, thing: str) -> str:
    """A number and what is counted.

    >>> several(1, "GPU"), several(12, "pod")
    ('1 GPU', '12 pods')
    """
    return f"{value:,.0f} {thing}" + ("" if round(value) == 1 else "s")


def number(value: float) -> str:
    """A number whose name says no unit: a count where it is whole or large, else three digits.

    >>> number(1420), number(2.0), number(0.12345), number(5632.4), number(3.39e38)
    ('1,420', '2', '0.123', '5,632', '3.39e+38')
    """
    if _NOT_COUNTED <= abs(value) < math.inf:
        return f"{value:.3g}"
    counted = math.isfinite(value) and (value == int(value) or abs(value) >= 1000)
    return count(value) if counted else digits(value)


UNITS: dict[str, Callable[[float], str]] = {
    "flops_per_second": lambda value: scaled(value, "FLOP/s"),
    "bytes_per_second": lambda value: scaled(value, "B/s"),
    "flops_per_byte": digits,
    "seconds": seconds,
    "us": microseconds,
    "bytes": memory,
    "flops": lambda value: scaled(value, "FLOP"),
    "share": percent,
    "fraction": percent,
    "percent": lambda value: percent(value / 100),
    "ratio": ratio,
    "hours": lambda value: hours(value * 3600),
    "usd": usd,
}
"""Ending of a name → how its value is written; the longer endings stand first."""


def unit_of(name: str) -> str:
    """The unit that a name ends with; empty where it names none.

    >>> unit_of("peak_memory_bytes"), unit_of("bus_bytes_per_second"), unit_of("seconds")
    ('bytes', 'bytes_per_second', 'seconds')
    >>> unit_of("requests_per_second"), unit_of("bus")
    ('', '')
    """
    return next((unit for unit in UNITS if name == unit or name.endswith(f"_{unit}")), "")


def shown(name: str, value: float) -> str:
    """A value in the unit that its name ends with.

    >>> shown("step_seconds", 0.25), shown("peak_bytes", 2e9), shown("num_layers", 12)
    ('250 ms', '2.00 GB', '12')
    """
    unit = unit_of(name)
    return UNITS[unit](value) if unit else number(value)


def without_unit(name: str) -> str:
    """A name in words, without its unit.

    >>> without_unit("peak_memory_bytes"), without_unit("num_layers"), without_unit("seconds")
    ('peak memory', 'layers', 'seconds')
    """
    unit = unit_of(name)
    return name.removesuffix(f"_{unit}").removeprefix("num_").replace("_", " ")


def _three_digits(value: float) -> float:
    return float(f"{value:.2e}")
