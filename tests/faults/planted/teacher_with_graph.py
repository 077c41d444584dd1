"""Distillation whose teacher records a graph, and is gone back through, in every step."""

import argparse

import torch
from torch import nn
from torch.nn import functional


def network(width, layers):
    parts = [nn.Linear(64, width), nn.ReLU()]
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(width, 10))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    teacher, student = network(768, 3), network(96, 1)
    teacher.requires_grad_(not args.repaired)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3, fused=True)
    data = torch.randn(2048, 64)
    for step in range(1, args.steps + 1):
        start = step % 8 * 256
        x = data[start : start + 256]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            wanted = teacher(x)
            loss = functional.mse_loss(student(x).float(), wanted.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
