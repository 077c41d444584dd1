"""An agent plays for a fifth of a second, then learns from it in 60 short steps."""

import time

import torch
from torch import nn

torch.manual_seed(0)
agent = nn.Linear(8, 2)
optimizer = torch.optim.SGD(agent.parameters(), lr=0.01)
for _ in range(200):
    with torch.no_grad():
        for _ in range(20):
            agent(torch.randn(1, 8))
            time.sleep(0.01)
    for _ in range(60):
        optimizer.zero_grad()
        agent(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
