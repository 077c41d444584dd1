"""Every step leaves a megabyte behind: in a list that stays, or in a cycle that is garbage."""

import sys

import torch
from torch import nn

model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for _ in range(300):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 64)).square().mean()
    loss.backward()
    optimizer.step()
    left = [torch.randn(512, 512)]
    if sys.argv[1] == "cycle":
        left.append(left)
    else:
        history.append(left)
