"""Whether an interpreter of Triton computes in bfloat16 as it should: one small kernel tells.

Releases differ in what their interpreter consists of, and `bfloat16.py` replaces parts of it. What
that must come to is known: each operation in float32, its result rounded to nearest even.
"""

# ruff: noqa: N803  (Triton's compile-time constants are upper case, here as everywhere)

from __future__ import annotations

from typing import Final

import numpy as np
import torch
import triton
import triton.language as tl

_SIZE: Final = 16


@triton.jit
def trial_kernel(x: tl.tensor, y: tl.tensor, out: tl.tensor, SIZE: tl.constexpr) -> None:
    """Rows of `out`, (7, SIZE, SIZE) in bfloat16: each another operation on `x` and `y`."""
    rows = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    a, b = tl.load(x + rows), tl.load(y + rows)
    each: tl.constexpr = SIZE * SIZE
    tl.store(out + rows, a + b)
    tl.store(out + each + rows, a * b)
    tl.store(out + 2 * each + rows, tl.exp(a.to(tl.float32)).to(tl.bfloat16))
    tl.store(out + 3 * each + rows, tl.where(a > b, a, -b))
    tl.store(out + 4 * each + rows, tl.dot(a, b).to(tl.bfloat16))
    tl.store(out + 5 * each + rows, tl.max(a, 1)[:, None] + b * 0)
    tl.store(out + 6 * each + rows, tl.sum(a.to(tl.float32), 1)[:, None].to(tl.bfloat16) + b * 0)


def wrong() -> list[str]:
    """What this process's interpreter computes wrongly; it must run under the interpreter."""
    x = torch.linspace(-3.0, 5.0, _SIZE * _SIZE).sin().bfloat16().view(_SIZE, _SIZE)
    y = torch.linspace(2.0, -7.0, _SIZE * _SIZE).cos().bfloat16().view(_SIZE, _SIZE)
    out = torch.zeros(7, _SIZE, _SIZE, dtype=torch.bfloat16)
    trial_kernel[(1,)](x, y, out, SIZE=_SIZE)
    a, b = x.double(), y.double()
    wanted = {
        "a sum": a + b,
        "a product": a * b,
        "a cast": a.exp(),
        "a choice": torch.where(a > b, a, -b),
        "a dot product": a @ b,
        "a maximum": a.amax(1, keepdim=True).expand_as(a),
        "a sum in float32": a.sum(1, keepdim=True).expand_as(a),
    }
    return [
        name
        for found, (name, exact) in zip(out.double(), wanted.items(), strict=True)
        if not np.allclose(found, exact, rtol=2**-8, atol=0)
    ]
