"""Weights that two modules share, and a module inside of itself."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.second = self.first
        self.tied = nn.Linear(16, 16)
        self.tied.weight = self.first.weight

    def forward(self, x):
        return self.tied(self.second(self.first(x)))


model = Net()
model.first.owner = [model]
model.tied.add_module("again", model.first)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(150):
    loss = model(torch.randn(8, 16)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
