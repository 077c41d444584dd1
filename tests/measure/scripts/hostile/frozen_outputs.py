"""Outputs in a frozen dataclass, called through a functools.partial."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Output:
    logits: torch.Tensor
    cache: object = None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x, scale):
        return Output(self.layer(x) * scale)


net = Net()
model = partial(net, scale=2.0)
optimizer = torch.optim.Adam(net.parameters())
for _ in range(150):
    loss = model(torch.randn(8, 16)).logits.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
