"""A model that is no module: equal parts, all called once before there is an optimizer."""

import torch
from torch import nn

torch.manual_seed(0)
parts = nn.ModuleList(nn.Linear(32, 32) for _ in range(12))


def run_all(x):
    for part in parts:
        x = torch.tanh(part(x))
    return x


with torch.no_grad():
    print("before", run_all(torch.randn(64, 32)).mean().item())
optimizer = torch.optim.SGD(parts.parameters(), lr=0.1)
for _ in range(3000):
    x = torch.randn(16, 32)
    loss = nn.functional.mse_loss(run_all(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
