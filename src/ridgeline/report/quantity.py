"""Numbers as people read them: three significant digits, SI prefixes (GB is 1e9 bytes)."""

from __future__ import annotations

import math

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def digits(value: float) -> str:
    """Three significant digits without exponent.

    >>> digits(213.44), digits(9.8765), digits(0.04321), digits(12345.0)
    ('213', '9.88', '0.0432', '12345')
    """
    if not math.isfinite(value):
        return "–" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if value == 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(places, 6)}f}".replace("-", "−")


def seconds(value: float) -> str:
    """A duration.

    >>> seconds(0.2134), seconds(75.0), seconds(4e-6), seconds(0.0)
    ('213 ms', '75.0 s', '4.00 µs', '0 s')
    """
    size = abs(value)
    if value == 0 or not math.isfinite(value):
        return f"{digits(value)} s"
    if size >= 600:
        return f"{digits(value / 60)} min"
    if size >= 0.9995:
        return f"{digits(value)} s"
    if size >= 0.9995e-3:
        return f"{digits(value * 1e3)} ms"
    if size >= 0.9995e-6:
        return f"{digits(value * 1e6)} µs"
    return f"{digits(value * 1e9)} ns"


def scaled(value: float, unit: str) -> str:
    """A quantity with an SI prefix.

    >>> scaled(1.02e11, "FLOP/s"), scaled(512e6, "B"), scaled(12.0, "B")
    ('102 GFLOP/s', '512 MB', '12 B')
    """
    for size, prefix in _PREFIXES:
        if abs(value) >= 0.9995 * size:
            return f"{digits(value / size)} {prefix}{unit}"
    return f"{_plain(value)} {unit}"


def memory(value: float) -> str:
    """A number of bytes, in powers of 1000.

    >>> memory(1_240_000_000)
    '1.24 GB'
    """
    return scaled(value, "B")


def ratio(value: float) -> str:
    """A multiplier; two decimals, because a third is noise.

    >>> ratio(1.5), ratio(12.345), ratio(0.931)
    ('1.50×', '12.3×', '0.93×')
    """
    if not math.isfinite(value):
        return "∞×"
    return f"{value:.2f}×" if abs(value) < 10 else f"{digits(value)}×"


def interval(low: float, high: float) -> str:
    """The bounds of a multiplier; a third decimal where it says on which side of 1 a bound is.

    >>> interval(1.48, 1.57), interval(1.004, 1.02), interval(0.0, float("inf"))
    ('[1.48, 1.57]', '[1.004, 1.020]', '[–, –]')
    """
    if low <= 0 and not math.isfinite(high):
        return "[–, –]"
    if min(abs(low - 1), abs(high - 1)) < 0.01 and high < 10:
        return f"[{low:.3f}, {high:.3f}]"
    return f"[{ratio(low)[:-1]}, {ratio(high)[:-1]}]"


def hours(seconds: float) -> str:
    """A long time, in hours whatever its length, so that a column of them can be compared.

    >>> hours(1.17e6), hours(5.4e6), hours(1800.0)
    ('325 h', '1,500 h', '0.500 h')
    """
    value = seconds / 3600
    return f"{value:,.0f} h" if value >= 1000 else f"{digits(value)} h"


def usd(value: float) -> str:
    """An amount of money: three significant digits from a hundred dollars, cents below.

    >>> usd(16311.0), usd(50_000.0), usd(213.4), usd(9.5), usd(0.00123)
    ('$16,300', '$50,000', '$213', '$9.50', '$0.00123')
    """
    if not math.isfinite(value):
        return f"${digits(value)}"
    if value >= 99.995:
        return f"${round(value, 2 - math.floor(math.log10(value))):,.0f}"
    return f"${value:.2f}" if value >= 0.0995 or value == 0 else f"${digits(value)}"


def percent(fraction: float) -> str:
    """A share, whole percents where a fraction of one would not be read.

    >>> percent(0.142), percent(0.0043), percent(0.02)
    ('14 %', '0.4 %', '2 %')
    """
    value = fraction * 100
    text = f"{value:.1f}".removesuffix(".0") if abs(value) < 9.95 else f"{value:.0f}"
    return f"{text} %".replace("-", "−")


def count(value: float) -> str:
    """A number of things, thousands apart.

    >>> count(1420.0), count(4970.3), count(0.5)
    ('1,420', '4,970', '0.5')
    """
    return _plain(value)


def _plain(value: float) -> str:
    if not math.isfinite(value):
        return digits(value)
    rounded = round(value, 1)
    return f"{rounded:,.0f}" if rounded == int(rounded) or rounded >= 100 else f"{rounded:.1f}"
