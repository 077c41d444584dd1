"""A profiler of the script's own, switched on in the middle."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(model.parameters())
profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
for index in range(150):
    if index == 5:
        profiler.start()
    loss = model(torch.randn(8, 16)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
