"""Arrays over cases, which all formulas of a step are written for: one case or a million.

A dataclass of `Cases` has one array per field, all of one length or of length one (which holds for
every case).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Number = float | Floats
"""A number of one run, or of each of many."""
Flag = bool | Bools
"""Whether something holds for one run, or for each of many."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """A record of arrays, or of such records: what all of them can do."""

    def take(self, which: object) -> Self:
        """The cases at these positions, or where this mask is true."""
        values = {name: getattr(self, name) for name in _names(self)}
        return type(self)(
            **{
                name: value.take(which) if isinstance(value, Cases) else value[which]
                for name, value in values.items()
            }
        )


def as_arrays(record: T) -> T:
    """A record of numbers as one of arrays of length one; what is no number stays.

    The record of a single run and that of many are one class, whose fields are `Number` or `Flag`.
    """
    assert is_dataclass(record)
    values = {name: getattr(record, name) for name in _names(record)}
    changed = {name: _as_array(value) for name, value in values.items() if _is_number(value)}
    found: T = replace(record, **changed)  # type: ignore[type-var]
    return found


def join(parts: Sequence[T]) -> T:
    """Records of arrays, one behind the other, field by field and however nested.

    >>> join([np.array([1.0]), np.array([2.0, 3.0])])
    array([1., 2., 3.])
    """
    first = parts[0]
    joined: Any
    if is_dataclass(first):
        columns = {name: [getattr(part, name) for part in parts] for name in _names(first)}
        joined = replace(
            first,  # type: ignore[type-var]
            **{name: join(column) for name, column in columns.items() if _is_joined(column[0])},
        )
    else:
        joined = np.concatenate(parts)  # type: ignore[arg-type]
    found: T = joined
    return found


def _names(record: Any) -> tuple[str, ...]:
    kind: Any = type(record)
    return _names_of(kind)


@functools.cache
def _names_of(kind: Any) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float)


def _as_array(value: bool | float) -> NDArray[Any]:
    return np.array([value if isinstance(value, bool) else float(value)])


def _is_joined(value: object) -> bool:
    return is_dataclass(value) or isinstance(value, np.ndarray)
