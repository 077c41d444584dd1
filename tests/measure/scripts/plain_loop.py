"""A hand-written loop."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
for _ in range(steps):
    x = torch.randn(16, 32)
    loss = nn.functional.mse_loss(model(x), x[:, :4])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("final", loss.item())
