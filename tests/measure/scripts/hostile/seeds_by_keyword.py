"""Seeds given by name, and at the end of their range."""

import random

import numpy as np
import torch
from torch import nn

np.random.seed(seed=2**32 - 1)
np.random.seed(np.int64(7))
random.seed(a="a text")
random.seed(a=3)
torch.manual_seed(seed=2**64 - 1)
torch.manual_seed(-5)
np.random.default_rng(seed=[1, 2])
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(150):
    loss = model(torch.randn(8, 16)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
