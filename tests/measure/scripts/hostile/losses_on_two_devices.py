"""Two losses in one step, on two devices."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(model.parameters())
shapes = nn.Linear(4, 4, device="meta")
for _ in range(150):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).pow(2).mean()
    extra = shapes(torch.randn(2, 4, device="meta")).sum()
    torch.autograd.backward([loss, extra])
    optimizer.step()
