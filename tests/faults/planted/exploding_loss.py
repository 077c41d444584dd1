"""Regression whose learning rate is far too high: the loss is NaN after a few steps, in silence."""

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

    width, batch_size = 1024, 2048
    learning_rate = 1e-3 if args.repaired else 10.0
    model = nn.Sequential(
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, 1),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, fused=True)
    features = torch.randn(4 * batch_size, width)
    targets = features[:, :8].sum(dim=1, keepdim=True)

    for step in range(1, args.steps + 1):
        start = step % 4 * batch_size
        x, y = features[start : start + batch_size], targets[start : start + batch_size]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            prediction = model(x)
        loss = F.mse_loss(prediction.float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
