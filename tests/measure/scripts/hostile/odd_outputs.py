"""Forwards that return nothing, a generator, or themselves; a module as its own attribute."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.__dict__["self"] = self

    def forward(self, x, kind):
        y = self.layer(x)
        return {"none": None, "lazy": (row for row in y), "loop": [y]}[kind]


model = Net()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(150):
    model(torch.randn(8, 16), "none")
    list(model(torch.randn(8, 16), "lazy"))
    loss = model(torch.randn(8, 16), "loop")[0].pow(2).mean()
    optimizer.zero_grad()
    torch.autograd.backward(tensors=loss)
    optimizer.step()
