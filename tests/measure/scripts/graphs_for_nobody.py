"""Calls of models whose graphs are of use to somebody, or to nobody; `asks` adds a penalty."""

import sys

import torch
from torch import nn
from torch.nn import functional


def network(inputs=6):
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, 6))


class Hidden(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, x):
        return iter([self.inner(x)])


torch.manual_seed(0)
model, maker, critic, target, judge, hidden = (*(network() for _ in range(5)), Hidden())
stepped = [*model.parameters(), *maker.parameters(), *critic.parameters(), *hidden.parameters()]
optimizer = torch.optim.SGD(stepped, lr=0.01)
for _ in range(200):
    x = torch.randn(8, 6)
    action = model(x).argmax(1)  # nobody: an agent acts
    wanted = target(x)  # nobody: weights that no optimizer steps
    made = maker(x).detach()  # nobody: samples are detached
    loss = functional.mse_loss(model(x), wanted)  # somebody
    loss = loss + judge(maker(x)).mean()  # somebody: through it to the maker
    loss = loss + critic(made).mean() + next(hidden(x)).mean()  # somebody
    for part in (x, made):
        value = critic(part)  # somebody, every second time
        if part is made:
            loss = loss + value.mean()
    if "asks" in sys.argv:
        loss = loss + torch.autograd.grad(loss, critic[0].bias, create_graph=True)[0].norm()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
