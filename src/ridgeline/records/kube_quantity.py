"""Amounts as Kubernetes writes them: `500m` of a core, `1.5Gi` of memory, `8` GPUs."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

_QUANTITY = re.compile(
    r"([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?",
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def parse_quantity(value: Any) -> Fraction | None:
    """The number, or None where the server would not read it. Null is zero, as in Go.

    >>> parse_quantity("1.5Gi") == 3 * 2**29
    True
    >>> parse_quantity("500m")
    Fraction(1, 2)
    """
    if value is None:
        return Fraction(0)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return _of_text(str(value))


@lru_cache(maxsize=4096)  # a cluster has thousands of pods and few amounts
def _of_text(text: str) -> Fraction | None:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    sign, digits, suffix = match.groups()
    number = Fraction(digits if not digits.endswith(".") else digits[:-1])
    if suffix in _BINARY:
        number *= 2 ** _BINARY[suffix]
    elif suffix in _DECIMAL:
        number *= Fraction(10) ** _DECIMAL[suffix]
    elif suffix:
        number *= Fraction(10) ** int(suffix[1:])
    return -number if sign == "-" else number
