"""Compiled gated network that looks at its activations between the operations of each block."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class GatedBlock(nn.Module):
    def __init__(self, width, repaired):
        super().__init__()
        self.repaired = repaired
        self.gate = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def watch(self, name, x):
        if not self.repaired and x.abs().max().item() > 1e4:
            print(f"{name} grows: {x.abs().max().item():.1f}")

    def forward(self, x):
        gate = self.gate(x)
        self.watch("gate", gate)
        gate = 0.5 * gate * (1.0 + torch.tanh(0.79788456 * (gate + 0.044715 * gate * gate * gate)))
        self.watch("activation", gate)
        value = gate * self.value(x)
        self.watch("value", value)
        x = x + value
        scale = torch.rsqrt(x.float().square().mean(dim=-1, keepdim=True) + 1e-6)
        self.watch("scale", scale)
        return (x * scale).to(value.dtype)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    width, classes, batch_size = 512, 32, 2048
    model = nn.Sequential(
        *[GatedBlock(width, args.repaired) for _ in range(3)], nn.Linear(width, classes)
    )
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    inputs = torch.randn(4 * batch_size, width)
    labels = (inputs @ torch.randn(width, classes)).argmax(dim=1)

    for step in range(1, args.steps + 1):
        start = step % 4 * batch_size
        x, y = inputs[start : start + batch_size], labels[start : start + batch_size]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(compiled(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
