"""FLOPs are counted on a meta model before the loop and in every step of it."""

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def flops():
    with torch.device("meta"):
        shapes, inputs = nn.Linear(16, 16), torch.randn(8, 16)
    with FlopCounterMode(display=False) as counter:
        shapes(inputs).sum().backward()
    return counter.get_total_flops()


flops()
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(150):
    flops()
    loss = model(torch.randn(8, 16)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
