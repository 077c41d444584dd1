"""A loader of batch samplers, one without batching, one that is a subclass."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Batches(IterableDataset):
    def __iter__(self):
        for _ in range(150):
            yield torch.randn(8, 16)


class Plain(DataLoader):
    def __init__(self, rows):
        super().__init__(rows, batch_size=None)
        self.prefetch_factor = "some"


model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(model.parameters())
for batch in Plain(Batches()):
    loss = model(batch).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
