"""The optimizer's step is compiled."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(model.parameters())


@torch.compile(backend="eager", fullgraph=False)
def step():
    optimizer.step()


for _ in range(150):
    loss = model(torch.randn(8, 16)).pow(2).mean()
    loss.backward()
    step()
    optimizer.zero_grad(set_to_none=False)
