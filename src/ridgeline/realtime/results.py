"""Whether a changed pipeline gives the same results: equal, equal up to rounding, or bounded.

Results are whatever stages return. They are laid out as numbers and words in a fixed order; a frame
whose layout or words differ (one detection more) differs in structure, the others by their numbers.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline import quantity

ROUNDING = 1e-3
"""RMS difference over RMS value that changes in the order of summing may make, through a deep
network and what follows from it."""
ODD_FRAMES = 0.02
"""Share of frames in which rounding may carry a value over a threshold."""

_FAINT = 1e-3

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PlainResult:
    """One result as numbers and as everything else."""

    layout: str
    """Types, names, shapes and words, in order."""
    numbers: Numbers
    sizes: tuple[int, ...]
    """How many numbers each array of it has, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineResults:
    """Everything that came out of a replay, in a form that travels between processes."""

    sinks: Mapping[str, Sequence[tuple[int, PlainResult]]]
    quality: Mapping[str, float]
    """Figures of merit, the higher the better; empty where nobody said how to judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultCheck:
    """How two sets of results compare."""

    passed: bool
    summary: str


Check = Callable[[PipelineResults, PipelineResults, float], ResultCheck]
"""Results before and after, and the share by which a figure of merit may fall."""


def plain_result(value: Any) -> PlainResult:
    """A result laid out; what is neither a number, a word, nor made of such counts by its type."""
    words: list[str] = []
    numbers: list[Numbers] = []
    _lay_out(value, words, numbers)
    joined = np.concatenate(numbers) if numbers else np.zeros(0)
    return PlainResult("\n".join(words), joined, tuple(map(len, numbers)))


def _lay_out(value: Any, words: list[str], numbers: list[Numbers]) -> None:
    if isinstance(value, (bool, str, bytes, type(None))):
        words.append(repr(value))
    elif isinstance(value, (int, np.integer)):
        words.append(f"int {int(value)}")
    elif isinstance(value, (float, np.floating)):
        words.append("float")
        numbers.append(np.array([float(value)]))
    elif (array := _as_array(value)) is not None:
        words.append(
            f"{array.dtype} {array.shape}" if array.dtype.kind in "iub" else f"float {array.shape}"
        )
        numbers.append(array.astype(np.float64).ravel())
    elif isinstance(value, Mapping):
        for key, part in value.items():
            words.append(f"key {key!r}")
            _lay_out(part, words, numbers)
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        words.append(f"{type(value).__name__} of {len(value)}")
        for part in parts:
            _lay_out(part, words, numbers)
    else:
        words.append(type(value).__qualname__)
        for name, part in _attributes(value):
            words.append(f"field {name}")
            _lay_out(part, words, numbers)


def _as_array(value: Any) -> NDArray[Any] | None:
    if isinstance(value, np.ndarray):
        return value if value.dtype.kind in "fiub" else None
    if hasattr(value, "detach") and hasattr(value, "numpy"):
        tensor = value.detach().cpu()
        found: NDArray[Any] = (tensor.double() if tensor.is_floating_point() else tensor).numpy()
        return found
    return None


def _attributes(value: Any) -> list[tuple[str, Any]]:
    if dataclasses.is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    names = getattr(value, "__struct_fields__", None) or sorted(getattr(value, "__dict__", {}))
    return [(name, getattr(value, name)) for name in names]


@dataclass(frozen=True, slots=True)
class _Compared:
    frames: int
    equal: int
    odd: int
    """Frames that differ in structure, or are missing on one side."""
    error: float
    """The largest RMS difference over RMS value of any array, in frames of one structure."""


def _compare(before: PipelineResults, after: PipelineResults) -> _Compared:
    frames = equal = odd = 0
    leaves = _Leaves()
    for sink, rows in before.sinks.items():
        other = dict(after.sinks.get(sink, ()))
        extra = len(set(other) - {frame for frame, _ in rows})
        frames, odd = frames + len(rows) + extra, odd + extra
        for frame, result in rows:
            found = other.get(frame)
            if found is None or found.layout != result.layout:
                odd += 1
                continue
            equal += bool(np.array_equal(result.numbers, found.numbers, equal_nan=True))
            leaves.add(sink, result, found)
    return _Compared(frames, equal, odd, leaves.error())


class _Leaves:
    """Sums of squares of every array and number of a result, over frames of one layout."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], Numbers] = defaultdict(lambda: np.zeros(0))
        self._errors: dict[tuple[str, str], Numbers] = defaultdict(lambda: np.zeros(0))
        self._counts: dict[tuple[str, str], Numbers] = {}

    def add(self, sink: str, before: PlainResult, after: PlainResult) -> None:
        """One frame of both sides."""
        sizes = np.array([size for size in before.sizes if size], dtype=np.int64)
        if not len(sizes):
            return
        difference: Numbers = after.numbers - before.numbers
        lost = np.isnan(before.numbers) != np.isnan(after.numbers)
        difference = np.nan_to_num(difference)
        difference[lost] = np.inf
        starts, key = np.concatenate([[0], np.cumsum(sizes)[:-1]]), (sink, before.layout)
        values: Numbers = np.add.reduceat(np.nan_to_num(before.numbers) ** 2, starts)
        errors: Numbers = np.add.reduceat(difference**2, starts)
        known = key in self._counts
        self._counts[key] = np.add(sizes, self._counts[key] if known else 0).astype(np.float64)
        self._values[key] = np.add(values, self._values[key] if known else 0.0)
        self._errors[key] = np.add(errors, self._errors[key] if known else 0.0)

    def error(self) -> float:
        """The largest RMS difference over RMS value of any leaf.

        A leaf next to nothing is measured by a thousandth of the RMS of all values of the result.
        """
        worst = 0.0
        for key, counts in self._counts.items():
            values, errors = self._values[key] / counts, self._errors[key] / counts
            floor = _FAINT**2 * self._values[key].sum() / counts.sum()
            scale = np.maximum(values, floor)
            share = np.divide(errors, scale, out=np.full_like(errors, np.inf), where=scale > 0)
            worst = max(worst, float(np.sqrt(np.where(errors == 0, 0.0, share).max())))
        return worst


def check_within(freedom: float) -> Check:
    """How results are compared that may differ so far: not at all, by rounding, or by a bound."""
    if freedom == 0.0:
        return _equal
    return _rounding if freedom <= ROUNDING else _bounded(freedom)


def _equal(before: PipelineResults, after: PipelineResults, may_fall: float) -> ResultCheck:
    """Bit for bit the same, on every frame."""
    del may_fall
    found = _compare(before, after)
    return ResultCheck(
        passed=found.frames > 0 and found.equal == found.frames,
        summary=f"equal on {found.equal} of {found.frames} frames",
    )


def _rounding(before: PipelineResults, after: PipelineResults, may_fall: float) -> ResultCheck:
    """The check that results are equal but for the order of sums."""
    found = _compare(before, after)
    small = found.error <= ROUNDING and found.odd <= ODD_FRAMES * found.frames
    fallen = _fallen(before, after, may_fall)
    return ResultCheck(
        passed=found.frames > 0 and small and not fallen,
        summary=f"rounding: {_error(found)}{fallen}",
    )


def _bounded(bound: float) -> Check:
    """Figures of merit no lower than is allowed; without such, numbers within a bound.

    Args:
        bound: RMS difference over RMS value, and share of frames that differ in structure.
    """

    def check(before: PipelineResults, after: PipelineResults, may_fall: float) -> ResultCheck:
        found = _compare(before, after)
        if before.quality:
            fallen = _fallen(before, after, may_fall)
            figures = ", ".join(
                f"{name} {quantity.digits(value)} → {quantity.digits(after.quality[name])}"
                for name, value in before.quality.items()
                if name in after.quality
            )
            return ResultCheck(passed=not fallen, summary=f"quality: {figures}{fallen}")
        fits = found.error <= bound and found.odd <= bound * found.frames
        return ResultCheck(
            passed=found.frames > 0 and fits,
            summary=f"bounded: {_error(found)}, allowed {quantity.percent(bound, 1)}",
        )

    return check


def _error(found: _Compared) -> str:
    text = f"RMS difference {found.error:.1e} of the value"
    return f"{text}, {found.odd} of {found.frames} frames otherwise" if found.odd else text


def _fallen(before: PipelineResults, after: PipelineResults, may_fall: float) -> str:
    """Which figures of merit fell by more than is allowed; empty: none."""
    worse = [
        name
        for name, value in before.quality.items()
        if not after.quality.get(name, -math.inf) >= value - may_fall * abs(value)
    ]
    return f"; {', '.join(worse)} fell by more than {quantity.percent(may_fall)}" if worse else ""
