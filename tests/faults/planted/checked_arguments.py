"""Regression with correlated errors whose covariances are checked anew in every step."""

import argparse

import torch
from torch import nn
from torch.distributions import Distribution, MultivariateNormal


class Regression(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.middle = nn.Linear(inputs, outputs)
        self.width = nn.Linear(inputs, outputs)
        shared = torch.randn(outputs, outputs) / outputs
        self.register_buffer("shared", shared @ shared.T)

    def forward(self, x):
        width = nn.functional.softplus(self.width(x)) + 0.1
        return MultivariateNormal(self.middle(x), self.shared + torch.diag_embed(width))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    if args.repaired:
        Distribution.set_default_validate_args(False)

    model = Regression(16, 96)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    x, y = torch.randn(512, 16), torch.randn(512, 96)
    for step in range(1, args.steps + 1):
        start = step % 8 * 64
        rows = slice(start, start + 64)
        loss = -model(x[rows]).log_prob(y[rows]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
