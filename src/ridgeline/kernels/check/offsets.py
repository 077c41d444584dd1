"""Which offsets into tensors are computed in 32 bits: they wrap where a tensor has 2^31 elements.

No example is that large, and none need be. An offset that reaches through most of the largest
tensor of a launch does so at any size, so its width says what it can address: a product of a row
and a stride that is widened afterwards has wrapped by then. What is counted is what grows with a
tensor, the number of a program or an index that was read; places within a tile, and what a loop of
Python has counted, are not.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline.patches import Undo, in_reverse, patch
from ridgeline.records.kernel_check import KernelFinding

if TYPE_CHECKING:
    from ridgeline.kernels.check.seen import SeenLaunch

_NARROW_BITS = 32
_GROWS = "ridgeline.grows"
"""The attribute of what comes of the number of a program or of an index that was read."""
_NARROW = "ridgeline.narrow"
"""The attribute of a wide number: how large those of 32 bits were that it is the sum of."""
_MOST = 0.5
"""The share of the largest tensor beyond which an offset reaches through it."""
_KEEPING = (
    "triton.runtime.interpreter:InterpreterBuilder.ternary_op",
    "triton.runtime.interpreter:InterpreterBuilder.create_expand_dims",
    "triton.runtime.interpreter:InterpreterBuilder.create_broadcast",
    "triton.runtime.interpreter:InterpreterBuilder.create_splat",
)
_SUMS = (np.add, np.subtract, operator.add, operator.sub)


@dataclass
class OffsetReach:
    """The largest offsets into one tensor, in elements."""

    narrow: int = 0
    """Computed in 32 bits."""
    wide: int = 0


def watch_offsets(place: Callable[[int], OffsetReach | None]) -> Undo:
    """Note each offset that is added to a pointer.

    Args:
        place: Finds by an address what is noted of its tensor; None where nothing is to be noted.
    """

    def adding(original: Callable[..., Any]) -> Callable[..., Any]:
        def create_addptr(builder: Any, pointer: Any, offset: Any) -> Any:
            found = original(builder, pointer, offset)
            reach = place(int(np.min(pointer.data))) if np.size(offset.data) else None
            if reach is not None and _is_narrow(offset):
                size = _largest(offset) if _GROWS in offset.attr else 0
                reach.narrow = max(reach.narrow, size)
            elif reach is not None:
                reach.narrow = max(reach.narrow, offset.attr.get(_NARROW, 0))
                reach.wide = max(reach.wide, _largest(offset))
            return found

        return create_addptr

    return in_reverse(
        [
            patch("triton.runtime.interpreter:InterpreterBuilder.create_addptr", adding),
            patch("triton.runtime.interpreter:InterpreterBuilder.create_get_program_id", _growing),
            patch("triton.runtime.interpreter:InterpreterBuilder.create_masked_load", _growing),
            patch("triton.runtime.interpreter:InterpreterBuilder.cast_impl", _widening),
            patch("triton.runtime.interpreter:InterpreterBuilder.binary_op", _summing),
            *(patch(name, _keeping) for name in _KEEPING),
        ]
    )


def _is_narrow(handle: Any) -> bool:
    return int(handle.dtype.scalar.primitive_bitwidth) <= _NARROW_BITS


def _largest(handle: Any) -> int:
    return int(np.abs(np.asarray(handle.data).astype(np.int64)).max())


def _growing(original: Callable[..., Any]) -> Callable[..., Any]:
    def give(builder: Any, *given: Any, **named: Any) -> Any:
        found = original(builder, *given, **named)
        if found.dtype.scalar.is_int():
            found.attr[_GROWS] = 1
        return found

    return give


def _widening(original: Callable[..., Any]) -> Callable[..., Any]:
    def cast(builder: Any, source: Any, kind: Any) -> Any:
        found = original(builder, source, kind)
        if _GROWS in source.attr and kind.scalar.is_int():
            found.attr[_GROWS] = 1
            if _is_narrow(source) and not _is_narrow(found) and np.size(source.data):
                found.attr[_NARROW] = _largest(source)
        return found

    return cast


def _summing(original: Callable[..., Any]) -> Callable[..., Any]:
    def compute(builder: Any, left: Any, right: Any, operation: Any) -> Any:
        found = original(builder, left, right, operation)
        return _like(found, (left, right), with_narrow=operation in _SUMS)

    return compute


def _keeping(original: Callable[..., Any]) -> Callable[..., Any]:
    def shape(builder: Any, *given: Any) -> Any:
        return _like(original(builder, *given), given, with_narrow=True)

    return shape


def _like(found: Any, given: Sequence[Any], *, with_narrow: bool) -> Any:
    """Give a number the attributes of what it was made of."""
    attributes = [one for one in (getattr(one, "attr", None) for one in given) if one]
    if any(_GROWS in one for one in attributes):
        found.attr[_GROWS] = 1
    narrow = max((one.get(_NARROW, 0) for one in attributes), default=0)
    if narrow and with_narrow:
        found.attr[_NARROW] = narrow
    return found


def narrow_tensors(seen: SeenLaunch) -> list[str]:
    """The arguments through which offsets of 32 bits reach, among the largest of a launch."""
    return [name for name, reach in _of_the_largest(seen) if reach.narrow >= _half(seen)]


def mixed_offsets(seen: SeenLaunch) -> Iterator[KernelFinding]:
    """What is addressed in 32 bits beside another tensor of its size that is in 64."""
    narrow = narrow_tensors(seen)
    wide = [
        name
        for name, reach in _of_the_largest(seen)
        if name not in narrow and reach.wide >= _half(seen)
    ]
    if narrow and wide:
        yield KernelFinding(
            cause="narrow-offset",
            kernel=seen.kernel,
            summary=f"offsets into {', '.join(narrow)} are computed in 32 bits and wrap at 2^31 "
            f"elements; those into {', '.join(wide)} are not",
            evidence={"narrow": ", ".join(narrow), "wide": ", ".join(wide)},
            where=f"{seen.file}:{seen.line}",
            cure="widen the number of the row or program before it is multiplied: .to(tl.int64)",
        )


def _half(seen: SeenLaunch) -> float:
    return _MOST * max(map(_elements, seen.tensors.values()), default=0)


def _elements(tensor: Any) -> int:
    return int(tensor.untyped_storage().nbytes()) // int(tensor.element_size())


def _of_the_largest(seen: SeenLaunch) -> Iterator[tuple[str, OffsetReach]]:
    for name, tensor in seen.tensors.items():
        reach = seen.reach.get(tensor.untyped_storage().data_ptr())
        if reach is not None and _elements(tensor) >= _half(seen) > 0:
            yield name, reach
