"""Changes its folder, and empties its environment."""

import os
import tempfile

import torch
from torch import nn

os.environ.clear()
os.chdir(tempfile.gettempdir())
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(150):
    loss = model(torch.randn(8, 16)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
