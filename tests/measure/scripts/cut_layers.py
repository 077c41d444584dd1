"""Layers whose weights lie in parts on two ranks: gathered when used (`fsdp`), or not (`tp`)."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(
    *[nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128)) for _ in range(2)]
)
mesh = init_device_mesh("cpu", (2,))
for block in model:
    if sys.argv[1] == "fsdp":
        fully_shard(block, mesh=mesh)
    else:
        parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(400):
    model(torch.randn(16, 128)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
