"""Hooks of the script's own on every module, which look at ours."""

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

seen = []
register_module_forward_hook(lambda module, args, output: seen.append(type(module).__name__))
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(150):
    loss = model(torch.randn(8, 16)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
assert seen.count("ReLU") == 150
