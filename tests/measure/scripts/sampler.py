"""Langevin sampling: gradients of a function, no model, no optimizer and no backward."""

import sys

import torch

torch.manual_seed(0)
x = torch.randn(64, 8)
y = x @ torch.randn(8)


def energy(weights: torch.Tensor) -> torch.Tensor:
    return (x @ weights - y).pow(2).sum()


weights = torch.zeros(8)
for _ in range(200):
    if sys.argv[1:] == ["func"]:
        slope = torch.func.grad(energy)(weights)
    else:
        weights = weights.detach().requires_grad_()
        (slope,) = torch.autograd.grad(energy(weights), weights)
    weights = weights - 1e-3 * slope + 1e-2 * torch.randn(8)
