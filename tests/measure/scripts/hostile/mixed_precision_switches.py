"""Switches for float32 set by their new name, after which torch refuses the old one."""

import torch
from torch import nn

torch.backends.cuda.matmul.fp32_precision = "tf32"
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(150):
    loss = model(torch.randn(8, 16)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
