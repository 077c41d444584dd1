"""Functions of libdevice under Triton's interpreter, which has none: those that torch has, too.

They are computed in float64 and rounded to the dtype of the first argument. Functions that torch
lacks stay as they are, and a kernel that calls one ends with a line that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from ridgeline.kernels.check.bfloat16 import decoded, encoded
from ridgeline.patches import LIBDEVICE_NAMES, Undo, in_reverse, patch

_OTHERWISE: Final[dict[str, Callable[..., torch.Tensor]]] = {
    "cbrt": lambda x: x.sign() * x.abs().pow(1 / 3),
    "fdim": lambda x, y: (x - y).clamp_min(0),
    "fma": lambda x, y, z: x * y + z,
    "rint": torch.round,
    "nearbyint": torch.round,
    "rcp64h": torch.reciprocal,
}
"""What torch has under another name, or from parts."""


def install() -> Undo:
    """Give the interpreter of this process the functions of libdevice."""
    return in_reverse([patch(name, _computed(name.rpartition(":")[2])) for name in LIBDEVICE_NAMES])


def _computed(name: str) -> Callable[[Any], Callable[..., Any]]:
    bare = name.removeprefix("fast_").removesuffix("f") if name.startswith("fast_") else name
    function = _OTHERWISE.get(bare) or getattr(torch, bare)

    def make(_: Any) -> Callable[..., Any]:
        def compute(first: Any, *others: Any) -> Any:
            kind = first.dtype.scalar
            numbers = [_numbers(one) for one in (first, *others)]
            exact = function(*(torch.as_tensor(one, dtype=torch.float64) for one in numbers))
            found = exact.to(torch.float32 if kind == tl.bfloat16 else torch.float64).numpy()
            bits = encoded(found) if kind == tl.bfloat16 else found.astype(numbers[0].dtype)
            return tl.tensor(TensorHandle(np.asarray(bits), kind), first.type)

        return compute

    return make


def _numbers(one: Any) -> np.ndarray:
    """The numbers of a tensor of the interpreter, or of a plain number."""
    if not isinstance(one, tl.tensor):
        return np.asarray(float(getattr(one, "value", one)))
    data = np.asarray(one.handle.data)
    return decoded(data) if one.dtype.scalar == tl.bfloat16 else data
