"""Errors in the forward and in the step, which the script expects and survives."""

import torch
from torch import nn


class Moody(torch.optim.SGD):
    steps = 0

    def step(self, closure=None):
        Moody.steps += 1
        if Moody.steps % 5 == 0:
            raise RuntimeError("not this time")
        return super().step(closure)


model = nn.Linear(16, 16)
optimizer = Moody(model.parameters(), lr=0.01)
for index in range(250):
    try:
        model(torch.randn(8, 15 + (index % 7 > 0)))
    except RuntimeError:
        assert not model._forward_hooks
    loss = model(torch.randn(8, 16)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    try:
        optimizer.step()
    except RuntimeError:
        continue
