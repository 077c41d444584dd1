"""Models whose hooks keep activations for the same call's decoder, as DPT's do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ridgeline.compress.vision.graph import traced
from ridgeline.errors import ExportError


class HandsToItsDecoder(nn.Module):
    """Its hook closes over the model, so that a copy's hook writes to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Conv2d(3, 4, 3)
        self.activations: dict[str, Tensor] = {}
        self.net.register_forward_hook(lambda _, __, out: self.activations.update(deep=out))

    def forward(self, x: Tensor) -> Tensor:
        self.net(x)
        return self.activations["deep"].mean((2, 3))


def test_a_hook_that_a_copy_cannot_read_is_told_with_the_cure() -> None:
    model = HandsToItsDecoder().eval()
    with torch.no_grad():
        model(torch.rand(2, 3, 8, 8))
    with pytest.raises(ExportError, match=r"keeps .*activations.*--to torch-export"):
        traced(model, torch.rand(2, 3, 8, 8))
    assert type(model.activations["deep"]) is Tensor
