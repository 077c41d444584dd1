"""Makes Triton's interpreter compute rightly in bfloat16 and tf32.

The interpreter holds bfloat16 as its bits in uint16, and adds, multiplies and sums those bits as
integers; float32 is cut off, not rounded, on the way there; `input_precision` is not looked at
(triton issues 10945, 11584, 11604). Here numbers become float32, and results are rounded to nearest
even. It replaces private parts: on a release on which it was not tested a trial comes first
(`trial.py`), and what that finds wrong refuses the release.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import triton
import triton.language as tl

from ridgeline.errors import InputError
from ridgeline.patches import Undo, in_reverse, patch

TESTED: Final = ("3.6.0", "3.7.1", "3.8.0", "3.9.0")
"""Releases of Triton on which the tests of this module passed."""


def decoded(bits: np.ndarray) -> np.ndarray:
    """The float32 numbers that bfloat16 bits stand for; exact."""
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def encoded(numbers: np.ndarray) -> np.ndarray:
    """The bits of the nearest bfloat16 numbers, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(numbers, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, 0x7FC0, rounded).astype(np.uint16).reshape(np.shape(numbers))


def install() -> Undo:
    """Repair the interpreter of this process, whose kernels must run under it.

    Raises:
        InputError: A release of Triton whose interpreter does not become right by that.
    """
    undo = _replace()
    if triton.__version__ in TESTED:
        return undo
    from ridgeline.kernels.check import trial  # its kernel is for the interpreter from here on

    found = trial.wrong()
    if found:
        undo()
        raise InputError(
            f"triton {triton.__version__}: its interpreter computes {', '.join(found)} in bfloat16 "
            f"wrongly; install one of {', '.join(TESTED)}"
        )
    return undo


def _replace() -> Undo:
    return in_reverse(
        [
            patch("triton.runtime.interpreter:InterpreterBuilder.cast_impl", _cast),
            patch("triton.runtime.interpreter:InterpreterBuilder.create_fp_to_fp", _convert),
            patch("triton.runtime.interpreter:InterpreterBuilder.binary_op", _computed),
            patch("triton.runtime.interpreter:InterpreterBuilder.unary_op", _computed),
            patch("triton.runtime.interpreter:InterpreterBuilder.ternary_op", _computed),
            patch("triton.runtime.interpreter:InterpreterBuilder.create_fma", _fused),
            patch("triton.runtime.interpreter:InterpreterBuilder.create_dot", _dot),
            patch("triton.runtime.interpreter:ReduceOps.apply_impl", _folded),
            patch("triton.runtime.interpreter:ScanOps.apply_impl", _folded),
        ]
    )


def _is_bfloat16(handle: Any) -> bool:
    return bool(handle.dtype.scalar == tl.bfloat16)


def _wide(handle: Any) -> Any:
    """The same numbers as float32, where they are bfloat16."""
    if not _is_bfloat16(handle) or handle.data.dtype != np.uint16:
        return handle
    return type(handle)(decoded(handle.data), tl.float32)


def _narrow(handle: Any) -> Any:
    """The same numbers rounded to bfloat16; truth values stay."""
    if handle.data.dtype == np.bool_:
        return handle
    return type(handle)(encoded(handle.data), tl.bfloat16)


def _cast(original: Callable[..., Any]) -> Callable[..., Any]:
    def cast_impl(builder: Any, src: Any, dst_type: Any) -> Any:
        if _is_bfloat16(src):
            if dst_type.scalar == tl.bfloat16:
                return src
            wide = _wide(src)
            return wide if dst_type.scalar == tl.float32 else original(builder, wide, dst_type)
        if dst_type.scalar == tl.bfloat16:
            return _narrow(type(src)(src.data.astype(np.float32), tl.float32))
        return original(builder, src, dst_type)

    return cast_impl


def _convert(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_fp_to_fp(builder: Any, src: Any, dst_type: Any, rounding: Any) -> Any:
        if _is_bfloat16(src):
            wide = _wide(src)
            if dst_type.scalar.primitive_bitwidth >= 16:
                return builder.cast_impl(wide, dst_type)
            return original(builder, wide, dst_type, rounding)
        if dst_type.scalar == tl.bfloat16 and src.dtype.scalar.primitive_bitwidth >= 16:
            if rounding is not None and "RTZ" in str(rounding):
                wide = builder.cast_impl(src, tl.float32)
                bits = np.ascontiguousarray(wide.data).view(np.uint32) >> 16
                return type(src)(bits.astype(np.uint16), tl.bfloat16)
            return builder.cast_impl(src, dst_type)
        return original(builder, src, dst_type, rounding)

    return create_fp_to_fp


def _computed(original: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one, two or three numbers, and of the operation last."""

    def compute(builder: Any, *given: Any) -> Any:
        *handles, operation = given
        if operation is np.where or not any(_is_bfloat16(one) for one in handles):
            return original(builder, *given)
        return _narrow(original(builder, *(_wide(one) for one in handles), operation))

    return compute


def _fused(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_fma(builder: Any, *handles: Any) -> Any:
        if not any(_is_bfloat16(one) for one in handles):
            return original(builder, *handles)
        return _narrow(original(builder, *(_wide(one) for one in handles)))

    return create_fma


def _dot(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_dot(builder: Any, a: Any, b: Any, d: Any, precision: Any, *rest: Any) -> Any:
        a, b, total = _wide(a), _wide(b), _wide(d)
        if str(precision).endswith("TF32"):
            a, b = _cut(a), _cut(b)
        found = original(builder, a, b, total, precision, *rest)
        return _narrow(found) if _is_bfloat16(d) else found

    return create_dot


def _cut(handle: Any) -> Any:
    """Float32 numbers without the 13 bits that tf32 has no room for."""
    if handle.data.dtype != np.float32:
        return handle
    bits = np.ascontiguousarray(handle.data).view(np.uint32) & np.uint32(0xFFFFE000)
    return type(handle)(bits.view(np.float32), handle.dtype)


def _folded(original: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction or scan: sums are rounded at each step of a tree, as on a GPU; others once."""

    def apply_impl(operation: Any, tensors: Any) -> Any:
        narrow = [one.dtype.scalar == tl.bfloat16 for one in tensors]
        if not any(narrow):
            return original(operation, tensors)
        if getattr(operation, "combine_fn", None) is tl.standard._sum_combine and _folds(operation):
            return _summed(operation, tensors[0])
        wide = tuple(
            operation.to_tensor(decoded(one.handle.data), tl.float32) if small else one
            for one, small in zip(tensors, narrow, strict=True)
        )
        found = original(operation, wide)
        several = isinstance(found, list | tuple)
        results = [
            _narrowed(one) if one.dtype.scalar == tl.float32 else one
            for one in (found if several else [found])
        ]
        return results if several else results[0]

    return apply_impl


def _folds(operation: Any) -> bool:
    """Whether it is a reduction and no scan."""
    return hasattr(operation, "keep_dims")


def _summed(operation: Any, tensor: Any) -> Any:
    """The sum over an axis of bfloat16 numbers, half of them added to the other half each time."""
    numbers = decoded(tensor.handle.data)
    shape, axis = numbers.shape, operation.axis
    rows = numbers.reshape(-1) if axis is None else np.moveaxis(numbers, axis, 0)
    while len(rows) > 1:
        half = len(rows) // 2
        added = decoded(encoded(rows[:half] + rows[half : 2 * half]))
        rows = np.concatenate([added, rows[2 * half :]]) if len(rows) % 2 else added
    found = rows[0]
    if operation.keep_dims:
        found = found.reshape((1,) * len(shape)) if axis is None else np.expand_dims(found, axis)
    return operation.to_tensor(encoded(found), tl.bfloat16)


def _narrowed(tensor: Any) -> Any:
    handle = _narrow(tensor.handle)
    shape = list(tensor.shape)
    kind = tl.block_type(tl.bfloat16, shape) if shape else tl.bfloat16
    return tl.tensor(handle, kind)
