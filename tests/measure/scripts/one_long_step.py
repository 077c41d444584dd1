"""L-BFGS as physics-informed networks use it: one step evaluates its closure until the end."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 1))
points = torch.rand(512, 2)
optimizer = torch.optim.LBFGS(
    model.parameters(),
    max_iter=1_000_000,
    max_eval=1_000_000,
    tolerance_grad=0.0,
    tolerance_change=-1.0,
    history_size=10,
)


def closure():
    optimizer.zero_grad()
    loss = (model(points) - points.sum(1, keepdim=True).sin()).square().mean()
    loss.backward()
    return loss


while True:
    optimizer.step(closure)
