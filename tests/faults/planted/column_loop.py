"""Tabular model that normalises and embeds its columns one at a time in a Python loop."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class ColumnEncoder(nn.Module):
    """Scale, shift and squash each column with numbers of its own."""

    def __init__(self, columns, repaired):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(columns))
        self.shift = nn.Parameter(torch.zeros(columns))
        self.repaired = repaired

    def forward(self, table):
        if self.repaired:
            return torch.tanh(table * self.scale + self.shift)
        encoded = []
        for column in range(table.size(1)):
            value = table[:, column] * self.scale[column] + self.shift[column]
            encoded.append(torch.tanh(value))
        return torch.stack(encoded, dim=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    columns, width, classes, batch_size = 512, 1024, 16, 1024
    model = nn.Sequential(
        ColumnEncoder(columns, args.repaired),
        nn.Linear(columns, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, classes),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    table = torch.randn(8 * batch_size, columns)
    labels = (table @ torch.randn(columns, classes)).argmax(dim=1)

    for step in range(1, args.steps + 1):
        start = step % 8 * batch_size
        x, y = table[start : start + batch_size], labels[start : start + batch_size]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
