"""A dataset and a loader whose properties raise errors that cannot be printed."""

import torch
from torch import nn
from torch.utils.data import DataLoader


class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no words")


class Rows:
    def __len__(self):
        return 1600

    def __getitem__(self, index):
        return torch.randn(16)


class Loader(DataLoader):
    def __len__(self):
        raise Unprintable

    @property
    def prefetch_factor(self):
        raise Unprintable

    @prefetch_factor.setter
    def prefetch_factor(self, value):
        pass


model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(model.parameters())
for batch in Loader(Rows(), batch_size=8):
    loss = model(batch).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
