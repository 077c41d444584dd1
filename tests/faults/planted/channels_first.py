"""Bottleneck network, as in a ResNet, on images and weights laid out channel by channel."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Bottleneck(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.reduce = nn.Conv2d(width, inner, 1)
        self.conv = nn.Conv2d(inner, inner, 3, padding=1)
        self.expand = nn.Conv2d(inner, width, 1)

    def forward(self, x):
        h = F.relu(self.reduce(x))
        h = F.relu(self.conv(h))
        return F.relu(self.expand(h))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    classes, batch_size = 10, 16
    layout = torch.channels_last if args.repaired else torch.contiguous_format
    model = nn.Sequential(
        nn.Conv2d(3, 256, 1),
        Bottleneck(256, 64),
        Bottleneck(256, 64),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, classes),
    ).to(memory_format=layout)  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    labels = torch.randint(classes, (8 * batch_size,))
    images = torch.randn(8 * batch_size, 3, 32, 32) + labels.view(-1, 1, 1, 1) / classes
    images = images.contiguous(memory_format=layout)

    for step in range(1, args.steps + 1):
        start = step % 8 * batch_size
        x, y = images[start : start + batch_size], labels[start : start + batch_size]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
