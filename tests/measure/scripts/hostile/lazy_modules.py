"""Layers that learn their input size from the first batch."""

import torch
from torch import nn

model = nn.Sequential(nn.LazyLinear(32), nn.ReLU(), nn.LazyLinear(16))
model(torch.randn(8, 16))
optimizer = torch.optim.Adam(model.parameters())
late = nn.LazyLinear(4)
for _ in range(150):
    loss = late(model(torch.randn(8, 16))).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
