"""What a kernel promises the compiler by `tl.multiple_of`, which the interpreter takes on trust.

Loads are widened by it, so a promise that does not hold reads from elsewhere, or ends the program.
Of numbers that follow one another the first alone has to be a multiple: so the compiler takes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.records.kernel_check import KernelFinding


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenPromise:
    """Numbers that are no multiples of what was said."""

    line: int
    multiple: int
    value: int
    """The first of them."""
    count: int


def broken_promises(
    values: np.ndarray, multiples: Sequence[int], step: int, line: int
) -> Iterator[BrokenPromise]:
    """What does not hold, axis by axis.

    Args:
        values: Numbers, or addresses in bytes.
        multiples: For each axis; one for a number alone.
        step: By how much what follows is larger: 1, or the bytes of an element.
        line: Where the promise stands.
    """
    block = values.astype(np.int64).reshape(values.shape if values.ndim == len(multiples) else -1)
    for axis, multiple in enumerate(multiples):
        follows = np.zeros(block.shape, bool)
        first = [slice(None)] * block.ndim
        first[axis] = slice(1, None)
        follows[tuple(first)] = np.diff(block, axis=axis) == step
        wrong = ~follows & (block % multiple != 0)
        if wrong.any():
            yield BrokenPromise(
                line=line, multiple=multiple, value=int(block[wrong][0]), count=int(wrong.sum())
            )


def kept_promises(
    kernel: str, file: str, broken: Sequence[BrokenPromise]
) -> Iterator[KernelFinding]:
    """A finding for each line whose promise was broken."""
    by_line: dict[int, list[BrokenPromise]] = {}
    for one in broken:
        by_line.setdefault(one.line, []).append(one)
    for line, those in by_line.items():
        first, count = those[0], sum(one.count for one in those)
        yield KernelFinding(
            cause="broken-hint",
            kernel=kernel,
            summary=f"{first.value} is said to be a multiple of {first.multiple}; {count} such",
            evidence={"value": first.value, "multiple": first.multiple, "values": count},
            where=f"{file}:{line}",
            cure="leave tl.multiple_of out, or give it only what sizes and strides always are",
        )
