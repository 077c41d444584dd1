"""A model that makes tensors itself, of what it is given: arrays, a list of numbers, or nothing."""

import sys

import numpy
import torch
from torch import nn


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(100, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, users=None, items=None):
        seen = torch.arange(12) if users is None else torch.as_tensor(numpy.asarray(users))
        features = self.items(seen)
        if items is not None:
            features = features + self.items(torch.as_tensor(items)).mean(dim=1)
        return self.out(features)


def batch(kind):
    users = numpy.random.randint(0, 100, 24)
    if kind == "arrays":
        return users, numpy.random.randint(0, 100, (24, 5))
    return (users.tolist(),) if kind == "list" else ()


model = Recommender()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3000):
    loss = model(*batch(sys.argv[1])).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
