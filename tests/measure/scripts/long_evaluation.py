"""Evaluates for longer than anybody waits before it trains, as language models' scripts do."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.randn(64, 256)
model.eval()
with torch.no_grad():
    for _ in range(10_000_000):
        model(batch).square().mean().item()
model.train()
for _ in range(100):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
