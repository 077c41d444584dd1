"""A model whose special methods raise, every one of them."""

import torch
from torch import nn


def refuse(*_):
    raise RuntimeError("not for you")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        return self._modules["layer"](x)

    __len__ = __iter__ = __bool__ = __eq__ = __repr__ = refuse
    parameters = named_parameters = modules = children = buffers = refuse

    def __hash__(self):
        raise TypeError("unhashable")

    def __getattr__(self, name):
        raise RuntimeError(f"no {name}")


model = Net()
optimizer = torch.optim.Adam(list(model._modules["layer"].parameters()))
for _ in range(150):
    loss = model(torch.randn(8, 16)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
