"""Models that were scripted and traced."""

import torch
from torch import nn

inner = torch.jit.script(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
traced = torch.jit.trace(nn.Linear(16, 16), torch.randn(8, 16))
optimizer = torch.optim.Adam([*inner.parameters(), *traced.parameters()])
for _ in range(150):
    loss = traced(inner(torch.randn(8, 16))).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
