"""Sequence model compiled for one exact length, and given a batch of another length each time."""

import argparse
import random

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    generator = random.Random(0)
    torch._dynamo.config.recompile_limit = 128

    vocab, width, classes, batch_size = 500, 1024, 32, 16
    model = nn.Sequential(
        nn.Embedding(vocab, width),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, classes),
    )  # fmt: skip
    # This back end captures and lowers the graph but writes no C++, so that a compilation takes
    # a fraction of a second here instead of many seconds.
    compiled = torch.compile(model, backend="aot_eager", dynamic=bool(args.repaired))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    for step in range(1, args.steps + 1):
        length = generator.randint(80, 144)
        tokens = torch.randint(vocab, (batch_size, length))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = compiled(tokens)
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten() % classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
