"""What writes in place is quantised as what does not, without tracing a network again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ridgeline.compress.vision.graph import traced


class Residual(nn.Module):
    """A block as of ResNet: ReLUs in place, and a sum that is written into."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        kept = self.act(self.first(x))
        found = self.second(kept)
        found += kept
        return self.act(found) + kept


class ThroughViews(nn.Module):
    """A write that others see, through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        found = self.first(x)
        half = found[:, :4]
        found.relu_()
        return half.sum((1, 2, 3)) + found.sum((1, 2, 3))


def test_a_relu_in_place_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def again(*_: object) -> None:
        raise AssertionError("the network was traced again")

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", again)
    net, images = Residual().eval(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        assert torch.allclose(traced(net, images)(images), net(images), atol=1e-6)


def test_a_write_that_a_view_sees_is_seen() -> None:
    net, images = ThroughViews().eval(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        assert torch.allclose(traced(net, images)(images), net(images), atol=1e-4)
