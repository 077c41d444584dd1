"""Wide convolutional net whose large activations the C library gives back after every step."""

import argparse
import ctypes

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.head = nn.Linear(channels, classes)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        return self.head(x.mean((2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    if args.repaired:
        libc = ctypes.CDLL(None)
        for switch, value in ((-4, 0), (-1, -1), (-2, 64 << 20)):
            libc.mallopt(switch, value)
    torch.manual_seed(0)

    classes, batch_size = 10, 48
    model = Net(64, classes).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    inputs = torch.randn(4 * batch_size, 3, 64, 64).to(memory_format=torch.channels_last)
    labels = torch.randint(0, classes, (4 * batch_size,))

    for step in range(1, args.steps + 1):
        start = step % 4 * batch_size
        x, y = inputs[start : start + batch_size], labels[start : start + batch_size]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
