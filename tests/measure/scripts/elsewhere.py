"""Takes arguments, imports its neighbour, changes directory, ends with its own exit code."""

import os
import sys

import torch
from neighbour import FACTOR
from torch import nn

os.chdir("/")
assert sys.argv[1:] == ["--name", "a b", "-x"], sys.argv
assert __name__ == "__main__" and os.path.basename(sys.argv[0]) == "elsewhere.py"
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(60):
    optimizer.zero_grad()
    (model(torch.randn(4, 4)) * FACTOR).mean().backward()
    optimizer.step()
