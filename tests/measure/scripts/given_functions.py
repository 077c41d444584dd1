"""A model whose operators are given functions: attention by `flex_attention`, and a `cond`."""

import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(32, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.inward(x).view(4, 64, 3, 2, 16).permute(2, 0, 3, 1, 4)
        mixed = flex_attention(q, k, v).sum(1).flatten(0, 1)
        return torch.cond(mixed.sum() > 0, lambda t: t @ t.T, lambda t: (t - 1) @ t.T, (mixed,))


model = Net().eval()
with torch.no_grad():
    for _ in range(10_000):
        model(torch.randn(4, 64, 32))
