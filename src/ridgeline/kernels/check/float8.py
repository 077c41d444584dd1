"""Makes Triton's interpreter round to float8 as a GPU does: to the nearest, ties to even.

The interpreter adds half a step to the mantissa and loses what carries over into the exponent, so
124.3 became 64 in e4m3 where 128 is nearest. Beyond the largest number the largest is taken, as by
`cvt.rn.satfinite` (PTX ISA, cvt); NaN stays NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
import triton.language as tl

from ridgeline.kernels.check.bfloat16 import decoded
from ridgeline.patches import Undo, patch

_KINDS: Final = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}


def install() -> Undo:
    """Repair the interpreter of this process, after `bfloat16.install`."""
    return patch("triton.runtime.interpreter:InterpreterBuilder.create_fp_to_fp", _convert)


def encoded(numbers: np.ndarray, kind: torch.dtype) -> np.ndarray:
    """The bits of the nearest numbers of a kind of float8.

    >>> int(encoded(np.array([124.3], np.float32), torch.float8_e4m3fn)[0])  # 128
    112
    """
    most = torch.finfo(kind).max
    wide = torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.float32))
    return np.asarray(wide.clamp(-most, most).to(kind).view(torch.uint8).numpy())


def _convert(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_fp_to_fp(builder: Any, src: Any, dst_type: Any, rounding: Any) -> Any:
        kind, given = _KINDS.get(dst_type.scalar), src.dtype.scalar
        if kind is None or given.primitive_bitwidth < 16 or "RTZ" in str(rounding):
            return original(builder, src, dst_type, rounding)
        numbers = decoded(src.data) if given == tl.bfloat16 else src.data
        return type(src)(encoded(numbers, kind).reshape(np.shape(src.data)), dst_type.scalar)

    return create_fp_to_fp
