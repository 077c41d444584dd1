"""Replaces sys.stdout and sys.stderr by things that cannot do much."""

import sys

import torch
from torch import nn


class Tee:
    def write(self, text):
        raise ValueError("full")


sys.stdout, sys.stderr = Tee(), None
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(150):
    loss = model(torch.randn(8, 16)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
