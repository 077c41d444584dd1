"""Gradients by torch.func, per sample, and an optimizer of torch that uses them."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(model.parameters())


def loss_of(weights, row):
    return functional_call(model, weights, (row.unsqueeze(0),)).pow(2).mean()


for _ in range(80):
    weights = dict(model.named_parameters())
    rows = vmap(grad(loss_of), in_dims=(None, 0))(weights, torch.randn(4, 16))
    for name, weight in weights.items():
        weight.grad = rows[name].detach().mean(0)
    optimizer.step()
