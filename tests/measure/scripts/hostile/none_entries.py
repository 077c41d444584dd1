"""Containers with entries that are None, as timm and diffusers have them."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16), None, nn.Linear(16, 16)])
        self.heads = nn.ModuleDict({"absent": None, "head": nn.Linear(16, 16)})

    def forward(self, x):
        for layer in self.layers:
            x = x if layer is None else layer(x)
        return self.heads["head"](x)


model = Net()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(150):
    loss = model(torch.randn(8, 16)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
