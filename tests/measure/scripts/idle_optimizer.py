"""Makes an optimizer (to load a checkpoint into) but only evaluates."""

import torch
from torch import nn

model = nn.Linear(16, 4).eval()
optimizer = torch.optim.Adam(model.parameters())
with torch.no_grad():
    for _ in range(100):
        model(torch.randn(4, 16))
