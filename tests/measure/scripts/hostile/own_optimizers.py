"""An optimizer with no state, one whose groups are not told, and one that is none of torch."""

import torch
from torch import nn


class Plain(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.state = None

    def step(self, closure=None):
        if closure is not None:
            closure()
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter -= 0.01 * parameter.grad


class Hidden(Plain):
    """Its groups are only there while it is made."""

    def step(self, closure=None):
        pass


model = nn.Linear(16, 16)
optimizer, hidden = Plain(model.parameters()), Hidden(model.parameters())
hidden.param_groups = None
for _ in range(150):
    loss = model(torch.randn(8, 16)).pow(2).mean()
    model.zero_grad()
    loss.backward()
    hidden.step()
    optimizer.step(lambda: loss)
