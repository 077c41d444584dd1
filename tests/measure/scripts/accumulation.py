"""Four micro-batches per optimizer step."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(32, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(200):
    optimizer.zero_grad()
    for _ in range(4):
        x = torch.randn(8, 32)
        (model(x).pow(2).mean() / 4).backward()
    optimizer.step()
