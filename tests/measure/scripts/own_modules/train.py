"""Beside it lie modules that are called as those which the agent imports."""

import msgspec
import resource
import torch
from torch import nn

assert msgspec.MINE and resource.MINE

model = nn.Linear(16, 16)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(150):
    import statistics

    assert statistics.MINE
    loss = model(torch.randn(8, 16)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
