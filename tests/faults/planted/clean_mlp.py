"""Wide classifier with nothing wrong: large bfloat16 products, fused optimizer, data at hand.

What it frees stays with the process: on chips with fast bfloat16 the pages are felt.
"""

import argparse
import ctypes

import torch
import torch.nn.functional as F
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    for switch, value in ((-4, 0), (-1, -1), (-2, 64 << 20)):
        ctypes.CDLL(None).mallopt(switch, value)
    torch.manual_seed(0)

    width, classes, batch_size = 1024, 32, 2048
    model = nn.Sequential(
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, classes),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    inputs = torch.randn(4 * batch_size, width)
    labels = (inputs @ torch.randn(width, classes)).argmax(dim=1)

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
