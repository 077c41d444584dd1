"""Wide classifier that reaches its batch of 1024 by way of 32 micro-batches of 32."""

import argparse
import ctypes

import torch
import torch.nn.functional as F
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    if args.repaired:
        # Tensors of a whole batch are large: freed ones would go back to the system each step.
        libc = ctypes.CDLL(None)
        for switch, value in ((-4, 0), (-1, -1), (-2, 64 << 20)):
            libc.mallopt(switch, value)
    torch.manual_seed(0)

    width, classes, batch_size = 1024, 32, 1024
    micro_batch_size = 1024 if args.repaired else 32
    accumulation = batch_size // micro_batch_size
    model = nn.Sequential(
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, classes),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    inputs = torch.randn(8 * batch_size, width)
    labels = (inputs @ torch.randn(width, classes)).argmax(dim=1)

    for step in range(1, args.steps + 1):
        start = step % 8 * batch_size
        x, y = inputs[start : start + batch_size], labels[start : start + batch_size]
        total_loss = 0.0
        optimizer.zero_grad()
        for micro_x, micro_y in zip(
            x.split(micro_batch_size), y.split(micro_batch_size), strict=True
        ):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(micro_x), micro_y) / accumulation
            loss.backward()
            total_loss += loss.item()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {total_loss:.4f}")


if __name__ == "__main__":
    main()
