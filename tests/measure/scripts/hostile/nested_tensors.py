"""Inputs of different lengths in one nested tensor."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(150):
    rows = [torch.randn(n, 16) for n in (3, 5)]
    nested = torch.nested.nested_tensor(rows, layout=torch.jagged)
    loss = model(nested).values().pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
