"""What a trace says of the inputs of one operator call: sizes, number formats, other arguments.

Kineto writes `Input Dims`, `Input type` and, since torch 2.1, `Concrete Inputs`: three lists side
by side, an entry per argument of the operator's schema. A tensor that was left out has no sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import msgspec

Dims = tuple[int, ...]

_ITEM_BYTES = {
    "double": 8, "float": 4, "c10::Half": 2, "c10::BFloat16": 2,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1, "c10::Float8_e4m3fnuz": 1,
    "c10::Float8_e5m2fnuz": 1, "c10::complex<float>": 8, "c10::complex<double>": 16,
    "long int": 8, "long": 8, "int": 4, "short int": 2, "short": 2, "signed char": 1,
    "unsigned char": 1, "bool": 1,
}  # fmt: skip
"""Kineto's names of the formats of tensors → bytes of one number."""
DTYPES = {
    "double": "fp64", "float": "fp32", "c10::Half": "fp16", "c10::BFloat16": "bf16",
    "c10::Float8_e4m3fn": "fp8", "c10::Float8_e5m2": "fp8", "c10::Float8_e4m3fnuz": "fp8",
    "c10::Float8_e5m2fnuz": "fp8", "signed char": "int8",
}  # fmt: skip
"""Kineto's names of the formats → the dtype, named as in `hardware/`."""


_MOST_DIMS, _LONGEST = 8, 2**48


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorInputs:
    """The inputs of one call, an entry per argument."""

    dims: tuple[Dims | None, ...]
    """None for a list of tensors, or what is not sizes at all."""
    types: tuple[str, ...]
    values: tuple[str, ...]
    """Arguments that are no tensors, as text; empty where the trace does not say."""

    def tensor(self, place: int) -> Dims | None:
        """Sizes of an argument that is a tensor; None where there is none."""
        found = self.dims[place] if place < len(self.dims) else None
        return found or None

    def item_bytes(self, place: int) -> int | None:
        """Bytes of one number of an argument; None for one that is no tensor."""
        return _ITEM_BYTES.get(self.types[place]) if place < len(self.types) else None

    def bytes(self, place: int) -> int | None:
        """Bytes of an argument that is a tensor."""
        dims, size = self.tensor(place), self.item_bytes(place)
        return None if dims is None or size is None else prod(dims) * size

    def numbers(self, place: int) -> tuple[int, ...] | None:
        """An argument that is a list of whole numbers (or one of them)."""
        found = self._value(place)
        if isinstance(found, int) and not isinstance(found, bool):
            return (found,)
        whole = isinstance(found, list) and all(type(number) is int for number in found)
        return tuple(found) if whole else None

    def flags(self, place: int) -> tuple[bool, ...] | None:
        """An argument that is a list of truth values (or one of them)."""
        found = self._value(place)
        if isinstance(found, bool):
            return (found,)
        flags = isinstance(found, list) and all(isinstance(flag, bool) for flag in found)
        return tuple(found) if flags else None

    def _value(self, place: int) -> Any:
        """Values are written as Python prints them."""
        if place >= len(self.values):
            return None
        try:
            return msgspec.json.decode(self.values[place].lower())
        except (msgspec.DecodeError, RecursionError):
            return None


@lru_cache(maxsize=65536)
def operator_inputs(shapes: str) -> OperatorInputs | None:
    """What an entry of `Trace.shapes` says; None for one that is damaged.

    >>> operator_inputs('[[[128, 64], []], ["float", "Scalar"], ["", "2"]]').tensor(0)
    (128, 64)
    """
    try:
        found: Any = msgspec.json.decode(shapes)
    except msgspec.DecodeError:
        return None
    if not isinstance(found, list) or not found or not all(isinstance(p, list) for p in found):
        return None
    parts = [*found, [], []]
    return OperatorInputs(
        dims=tuple(_dims(entry) for entry in parts[0]),
        types=tuple(str(entry) for entry in parts[1]),
        values=tuple(str(entry) for entry in parts[2]),
    )


def _dims(entry: Any) -> Dims | None:
    """Sizes of a tensor; None for what none has (their product is a number, not an overflow)."""
    if not isinstance(entry, list) or len(entry) > _MOST_DIMS:
        return None
    sizes = all(type(size) is int and 0 <= size < _LONGEST for size in entry)
    return tuple(entry) if sizes else None
