"""Answers under `inference_mode`, where composite operators are not taken apart by autograd.

All calls are in one block, or with `each` every call is in one of its own.
"""

import sys
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

torch.manual_seed(0)


class Answers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(64, 16)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows = self.linear(self.conv(images).flatten(2))
        return scaled_dot_product_attention(rows, rows, rows) @ rows.transpose(-1, -2)


model = Answers().eval()
images = torch.randn(2, 3, 8, 8)
each = sys.argv[1:] == ["each"]
with nullcontext() if each else torch.inference_mode():
    for _ in range(3000):
        with torch.inference_mode() if each else nullcontext():
            model(images)
