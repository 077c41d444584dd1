"""One rank of `test_phases.py`: backward passes in which rank 1 is late."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from ridgeline.records.layout import Layout
from ridgeline.train.ranks import join
from ridgeline.train.watch.phases import Phases


class _Late(torch.autograd.Function):
    """Computes nothing, slowly."""

    @staticmethod
    def forward(ctx: object, values: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds  # type: ignore[attr-defined]
        return values.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)  # type: ignore[attr-defined]
        return gradient, None


def measure(late_seconds: float) -> dict[str, dict[str, float]]:
    ranks = join(Layout(dp=2, global_batch=2), timeout_seconds=60.0)
    ddp = DistributedDataParallel(nn.Linear(64, 64), process_group=ranks.group("data"))
    fsdp = fully_shard(nn.Linear(64, 64), mesh=ranks.axis("data"))
    seconds = late_seconds * ranks.rank
    return {name: _measure(one, seconds) for name, one in (("ddp", ddp), ("fsdp", fsdp))}


def _measure(model: nn.Module, seconds: float) -> dict[str, float]:
    phases = Phases(torch.device("cpu"))
    for late in (0.0, seconds):
        phases.take()
        dist.barrier()
        with phases.phase("backward"):
            with phases.phase("forward"):
                # Late before the layer's own gradients: they are what the other rank waits for.
                loss = _Late.apply(model(torch.ones(4, 64)), late).sum()
            phases.watched(loss).backward()
    return phases.take()
