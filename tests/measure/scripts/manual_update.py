"""No optimizer at all: parameters are updated by hand, from gradients of three makes.

`inputs` updates what the model is given instead, as an attack does: that trains nothing.
"""

import copy
import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 1)
weights = dict(model.named_parameters())
shapes = copy.deepcopy(model).to("meta")


def loss_of(weights: dict[str, torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
    return (torch.func.functional_call(shapes, weights, (batch,)) - 1).pow(2).mean()


way = sys.argv[1] if len(sys.argv) > 1 else "backward"
batch = torch.randn(32, 16)
for _ in range(200):
    if way == "func":
        slopes = torch.func.grad(loss_of)(weights, batch)
        weights = {name: weights[name] - 0.01 * slopes[name] for name in weights}
        continue
    batch = batch.detach().requires_grad_(way == "inputs")
    loss = (model(batch) - 1).pow(2).mean()
    if way == "inputs":
        batch = batch - 0.01 * torch.autograd.grad(loss, batch)[0].sign()
    elif way == "grad":
        steps = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, step in zip(model.parameters(), steps, strict=True):
                p.add_(step, alpha=-0.01)
    else:
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(p.grad, alpha=-0.01)
