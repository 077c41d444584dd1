"""Wide network whose gradients are filled with zeros and added to, instead of replaced."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    width, classes, batch_size = 2048, 32, 256
    model = nn.Sequential(
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, classes),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, fused=True)
    inputs = torch.randn(16 * batch_size, width)
    labels = (inputs @ torch.randn(width, classes)).argmax(dim=1)

    for step in range(1, args.steps + 1):
        start = step % 16 * batch_size
        x, y = inputs[start : start + batch_size], labels[start : start + batch_size]
        optimizer.zero_grad(set_to_none=args.repaired)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
