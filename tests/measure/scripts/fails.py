"""Fails in its fourth step."""

import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    model(torch.randn(4, 4)).mean().backward()
    optimizer.step()
    if step == 3:
        raise ValueError("the data ran dry")
