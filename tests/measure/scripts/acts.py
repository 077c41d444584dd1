"""An agent acts four times without gradients, then learns; it never leaves training mode."""

import torch
from torch import nn

torch.manual_seed(0)
agent = nn.Linear(8, 2)
optimizer = torch.optim.SGD(agent.parameters(), lr=0.1)
for _ in range(200):
    with torch.no_grad():
        for _ in range(4):
            agent(torch.randn(1, 8))
    optimizer.zero_grad()
    agent(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
