"""Each client trains a copy of the model for a few steps, with an optimizer of its own."""

import copy
import sys

import torch
from torch import nn

torch.manual_seed(0)
shared = nn.Linear(16, 8)
kept = []


def train(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if "kept" in sys.argv:
        kept.append(optimizer)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()


for _ in range(100):
    client = copy.deepcopy(shared)
    train(client)
    shared.load_state_dict(client.state_dict())
