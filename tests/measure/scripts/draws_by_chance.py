"""Batches and weights by chance: no seed, the system's, and the clock's."""

import random
import time

import numpy as np
import torch

torch.seed()
draw, other = np.random.default_rng(), np.random.RandomState()
np.random.seed()
random.seed()
start = [
    float(np.random.random()),
    random.random(),
    draw.random(),
    np.random.default_rng().random(),
]
assert len(set(start)) == len(start)
assert isinstance(other, np.random.RandomState)
torch.manual_seed(int(time.time()))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    batch = torch.tensor([draw.random(4), other.rand(4), start, torch.rand(4).tolist()])
    loss = model(batch.float()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
