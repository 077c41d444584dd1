"""Distinct values, quantiles and the order of nesting; columns as plain numbers.

`np.unique`, `np.median` and `np.quantile` load numpy's masked arrays when they are first used, and
`np.isin` does where values lie far apart: 8 ms, where all questions to a trace of 35 MB together
take 70.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ridgeline.trace.columns import Floats, Ints

Integer = TypeVar("Integer", bound=np.integer[Any])


_PIECE = 2**15
"""Rows that are plain numbers at a time: as objects a million of them is forty megabytes."""


def each(values: npt.NDArray[Any]) -> Iterator[Any]:
    """The values of a column as plain numbers, one after the other and never all at once.

    >>> list(each(np.array([1.5, 2.5])))
    [1.5, 2.5]
    """
    pieces = (values[at : at + _PIECE] for at in range(0, len(values), _PIECE))
    return chain.from_iterable(piece.tolist() for piece in pieces)


def distinct(values: npt.NDArray[Integer]) -> npt.NDArray[Integer]:
    """The values that there are, in order.

    Numbers of names, threads and rows lie close together: they are ticked off in a list of what
    there may be, which takes a fifth of the time of sorting them.

    >>> distinct(np.array([7, 3, 7]))
    array([3, 7])
    """
    if not len(values):
        return values[:0]
    low, high = int(values.min()), int(values.max())
    if high - low < len(values):
        there = np.zeros(high - low + 1, bool)
        there[np.subtract(values, low, dtype=np.intp) if low else values] = True
        found: npt.NDArray[Integer] = (np.flatnonzero(there) + low).astype(values.dtype)
        return found
    ordered = np.sort(values)
    return ordered[_heads(ordered)]


def counted(values: npt.NDArray[Integer]) -> tuple[npt.NDArray[Integer], Ints]:
    """The values that there are, in order, and how often each is there.

    >>> counted(np.array([7, 3, 7]))
    (array([3, 7]), array([1, 2]))
    """
    ordered = np.sort(values)
    heads = np.flatnonzero(_heads(ordered))
    return ordered[heads], np.diff(heads, append=len(ordered))


def first_places(values: npt.NDArray[Integer]) -> Ints:
    """Where each value is for the first time, in the order of the values.

    >>> first_places(np.array([7, 3, 7]))
    array([1, 0])
    """
    order = np.argsort(values, kind="stable")
    return order[_heads(values[order])]


def among(values: npt.NDArray[Any], chosen: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which of the values are among those chosen.

    >>> among(np.array([7, 3, 5]), np.array([3, 7]))
    array([ True,  True, False])
    """
    ordered = np.sort(chosen)
    if not len(ordered):
        return np.zeros(len(values), bool)
    places = np.searchsorted(ordered, values)
    found: npt.NDArray[np.bool_] = ordered[np.minimum(places, len(ordered) - 1)] == values
    return found


def _heads(ordered: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which of sorted values differ from the one before."""
    first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return first


def quantile(values: Floats, share: float) -> float:
    """The value below which a share of the values lies, interpolated as numpy does it.

    >>> quantile(np.array([3.0, 1.0, 2.0, 4.0]), 0.5)
    2.5
    """
    ordered = np.sort(values)
    return float(np.interp(share * (len(ordered) - 1), np.arange(len(ordered)), ordered))


def median(values: Floats) -> float:
    """The value in the middle, or between the two there."""
    return quantile(values, 0.5)


TICK_US = 1e-3
"""What profilers count in: a moment and the same one rounded are less than this apart."""


def on_ticks(us: Floats) -> Floats:
    """Times on the nanoseconds that profilers write.

    Start and length together are off by a float's rounding of 1e12 µs, and an event that starts
    when another one ends would seem to start before.
    """
    found: Floats = np.round(us, 3)
    return found


def by_start(starts: Floats, durations: Floats) -> Ints:
    """The order in which spans nest: by start, of those that start together the longer one first.

    Columns are nearly in order already, so that sorting them by start alone is some ten times
    quicker than by both; ties are set right afterwards.

    >>> by_start(np.array([5.0, 1.0, 1.0]), np.array([1.0, 2.0, 9.0]))
    array([2, 1, 0])
    """
    order = np.argsort(starts, kind="stable")
    ordered = starts[order]
    tied = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(tied):
        among = np.zeros(len(order), bool)
        among[tied] = among[tied + 1] = True
        places = np.flatnonzero(among)
        spans = order[places]
        order[places] = spans[np.lexsort((-durations[spans], starts[spans]))]
    return order
