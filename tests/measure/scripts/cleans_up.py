"""A loop whose files are gone when it ends: shared arrays, and a file that it removes itself."""

import multiprocessing
from pathlib import Path

import torch
from torch import nn

shared = multiprocessing.RawArray("d", 100_000)
Path("passing.txt").write_text("for a moment")
Path("passing.txt").unlink()
model = nn.Linear(32, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    x = torch.randn(16, 32)
    loss = nn.functional.mse_loss(model(x), x[:, :4])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    shared[step] = 1.0
