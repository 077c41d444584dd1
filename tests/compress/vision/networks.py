"""Networks of the shapes that vision models have, with statistics from data."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.act: nn.Module = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn2(self.conv2(self.act(self.bn1(self.conv1(x))))) + x)


class Residual(nn.Module):
    """A small ResNet; `act` None is ReLU."""

    def __init__(self, width: int = 16, blocks: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(blocks)])
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(torch.relu_(self.bn(self.stem(x))), 2)
        return self.head(self.blocks(x).mean((2, 3)))


class Detector(nn.Module):
    """An anchor-free head: boxes in pixels and scores come together in one tensor."""

    def __init__(self, size: int = 640, width: int = 16, classes: int = 4) -> None:
        super().__init__()
        self.size = size
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1), nn.SiLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1), nn.SiLU(),
        )  # fmt: skip
        self.boxes = nn.Conv2d(width, 4, 1)
        self.scores = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        boxes = self.boxes(x).sigmoid() * self.size
        return torch.cat([boxes.flatten(2), self.scores(x).sigmoid().flatten(2)], 1)


def images(batch: int = 8, batches: int = 2, size: int = 32) -> list[Tensor]:
    """Smooth images: noise of several scales added up."""
    generator = torch.Generator().manual_seed(7)
    found = []
    for _ in range(batches):
        parts = [
            functional.interpolate(
                torch.randn(batch, 3, size // step, size // step, generator=generator), size
            )
            for step in (1, 4, 8)
        ]
        found.append(torch.stack(parts).sum(0))
    return found


def settled(model: nn.Module, batches: list[Tensor]) -> nn.Module:
    """In inference, batch normalisation with the statistics of some images."""
    model.train()
    with torch.no_grad():
        for _ in range(10):
            for batch in batches:
                model(batch)
    return model.eval()
