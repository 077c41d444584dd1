"""A meta-learner that adapts a copy of itself after its first step, for ten seconds."""

import copy
import time

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(64, 64)
optimizer = torch.optim.Adam(model.parameters())
for step in range(2000):
    loss = model(torch.randn(32, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 0:
        adapted = copy.deepcopy(model)
        loss = adapted(torch.randn(32, 64)).square().mean()
        torch.autograd.grad(loss, list(adapted.parameters()))
        time.sleep(10)
    time.sleep(0.01)
