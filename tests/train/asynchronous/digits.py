"""A small problem for workers: which of two clouds a point is of, one worker slowed on request."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (as everywhere)


@dataclass(frozen=True)
class Clouds:
    """Points of two classes in 20 dimensions; every worker draws its own."""

    slow_worker: int = -1
    slow_rounds: int = 0
    """Products of large matrices that the slow worker computes beside each gradient."""
    fails: bool = False
    killed: bool = False
    diverges: bool = False

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Linear(20, 2)

    def loss(self, model: nn.Module, worker: int, step: int) -> Tensor:
        if self.fails:
            raise ValueError("no such cloud")
        if self.killed and (worker, step) == (1, 2):
            os.kill(os.getpid(), signal.SIGKILL)
        if worker == self.slow_worker:
            for _ in range(self.slow_rounds):
                torch.ones(512, 512) @ torch.ones(512, 512)
        points, labels = clouds(1000 * worker + step)
        return F.cross_entropy(model(points), labels) / (0.0 if self.diverges else 1.0)


def clouds(seed: int, count: int = 32) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (count,), generator=draw)
    centres = torch.where(labels == 1, 0.4, -0.4)[:, None]
    return torch.randn(count, 20, generator=draw) + centres, labels


def accuracy(model: nn.Module) -> float:
    points, labels = clouds(10**6, 2000)
    with torch.no_grad():
        return float((model(points).argmax(dim=1) == labels).float().mean())
