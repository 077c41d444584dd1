"""Products that are symmetric, of which one side is computed, at a size that fills no tile."""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.kernels.triton.muon import symmetric_product


def example() -> list[tuple[Tensor, Tensor]]:
    """Two matrices of 150 x 129 with themselves, then an update of one that is symmetric.

    Then one of 20 x 33 in float32.
    """
    x = (torch.randn(2, 150, 129) / 8).bfloat16()  # one more than tiles hold
    gram = symmetric_product(x, 0.0, 1.0)
    wide = x.double()
    again = symmetric_product(gram, -1.5, 0.5)
    square = gram.double()
    narrow = torch.randn(1, 20, 33)
    exact = narrow.double() @ narrow.double().mT
    return [
        (gram, wide @ wide.mT),
        (again, 0.5 * square @ square.mT - 1.5 * square),
        (symmetric_product(narrow, 0.0, 2.0), 2.0 * exact),
    ]
