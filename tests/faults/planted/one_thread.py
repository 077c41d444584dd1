"""Image classifier limited to one thread by a line copied from a shared login machine."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv_1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv_2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return F.relu(self.conv_2(F.relu(self.conv_1(x))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    if not args.repaired:
        torch.set_num_threads(1)

    width, classes, batch_size = 256, 10, 16
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1), nn.ReLU(),
        Block(width), Block(width),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes),
    ).to(memory_format=torch.channels_last)  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    labels = torch.randint(classes, (8 * batch_size,))
    images = torch.randn(8 * batch_size, 3, 32, 32) + labels.view(-1, 1, 1, 1) / classes
    images = images.contiguous(memory_format=torch.channels_last)

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
