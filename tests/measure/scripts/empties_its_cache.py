"""Throws away what it finds in its cache, as libraries do with a file whose hash is another."""

import os
import shutil
from pathlib import Path

import torch
from torch import nn

data = Path(os.environ["KERAS_HOME"]) / "datasets"
(data / "removed.npz").unlink()
shutil.rmtree(data / "folder")
(data / "replaced.npz").unlink()
(data / "replaced.npz").write_text("newer")
(data / "renamed.npz").rename(data / "another.npz")
(data / "downloaded.npz").write_text("more")
(data / "busy.lock").unlink()
model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(200):
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
