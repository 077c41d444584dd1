"""LBFGS runs forward and backward inside its step."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 1)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
x = torch.randn(64, 16)


def closure():
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean() + 0.01 * torch.rand(())
    loss.backward()
    return loss


for _ in range(200):
    optimizer.step(closure)
