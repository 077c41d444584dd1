"""Draws its progress as wide as the terminal is, and asks whether to go on."""

import os
import sys

import torch
from torch import nn

_, width = os.popen("stty size").read().split()  # noqa: S605, S607
assert int(width) == os.get_terminal_size().columns == 123
try:
    answer = input("go on? ")
except EOFError:
    answer = "nobody is there"
model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(200):
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    sys.stdout.write("=" * (int(width) * step // 200) + "\r")
