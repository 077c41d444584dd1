"""Closes its standard streams, and what it then opens takes their numbers."""

import os

import torch
from torch import nn

for descriptor in (0, 1, 2):
    os.close(descriptor)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(150):
    os.write(2, b"step\n") if os.path.exists("/proc/self/fd/2") else None
    loss = model(torch.randn(8, 16)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
