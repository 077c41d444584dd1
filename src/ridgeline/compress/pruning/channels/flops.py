"""What a forward pass computes: multiplications and additions of convolutions and products."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


@torch.no_grad()
def flops(model: nn.Module, example: tuple[Tensor, ...]) -> int:
    """Floating-point operations of one call, two per multiplication and addition.

    As torch.utils.flop_counter counts: norms, activations and pooling are left out.
    """
    counter = FlopCounterMode(display=False)
    with counter:
        model(*example)
    return int(counter.get_total_flops())
