"""Accumulation with nothing wrong: micro-batches large enough to fill the machine, and clipping."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)

    width, classes, micro_batch_size, accumulation = 128, 10, 16, 2
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes),
    ).to(memory_format=torch.channels_last)  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
    labels = torch.randint(classes, (16 * micro_batch_size,))
    images = torch.randn(len(labels), 3, 32, 32) + labels.view(-1, 1, 1, 1) / classes
    images = images.contiguous(memory_format=torch.channels_last)

    for step in range(1, args.steps + 1):
        total_loss = torch.zeros(())
        for micro in range(accumulation):
            start = (step * accumulation + micro) % 16 * micro_batch_size
            x = images[start : start + micro_batch_size]
            y = labels[start : start + micro_batch_size]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y) / accumulation
            loss.backward()
            total_loss += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 10 == 0:
            print(f"step {step} loss {total_loss.item():.4f}")


if __name__ == "__main__":
    main()
