"""Every warning is an error, and there are very few files to open."""

import resource
import warnings

import torch
from torch import nn

warnings.simplefilter("error")
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(150):
    loss = model(torch.randn(8, 16)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
