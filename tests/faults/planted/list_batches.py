"""Tabular classifier whose rows are Python lists, made into a tensor again for every batch."""

import argparse
import random

import torch
import torch.nn.functional as F
from torch import nn


def make_rows(count, columns, classes):
    generator = random.Random(0)
    rows, labels = [], []
    for i in range(count):
        rows.append([generator.random() + (j + i) % classes / classes for j in range(columns)])
        labels.append(i % classes)
    return rows, labels


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    columns, width, classes, batch_size = 512, 1024, 16, 1024
    rows, labels = make_rows(2 * batch_size, columns, classes)
    if args.repaired:
        rows, labels = torch.tensor(rows), torch.tensor(labels)
    model = nn.Sequential(
        nn.Linear(columns, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, classes),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    for step in range(1, args.steps + 1):
        start = step % 2 * batch_size
        x, y = rows[start : start + batch_size], labels[start : start + batch_size]
        if not args.repaired:
            x, y = torch.tensor(x), torch.tensor(y)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
