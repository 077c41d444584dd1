"""No optimizer at all: parameters are updated by hand."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 1)
for _ in range(200):
    loss = (model(torch.randn(32, 16)) - 1).pow(2).mean()
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(p.grad, alpha=-0.01)
