"""Transformer encoder trained inside a profiler whose result nobody reads any more."""

import argparse
import contextlib

import torch
import torch.nn.functional as F
from torch import nn


def build_model(width, classes):
    layer = nn.TransformerEncoderLayer(
        width, nhead=8, dim_feedforward=4 * width, dropout=0.0, activation="relu", batch_first=True
    )
    return nn.ModuleDict(
        {
            "embedding": nn.Embedding(500, width),
            "encoder": nn.TransformerEncoder(layer, num_layers=2),
            "head": nn.Linear(width, classes),
        }
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    classes, length, batch_size = 8, 128, 8
    model = build_model(512, classes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(500, (16 * batch_size, length))
    labels = tokens[:, :4].sum(dim=1) % classes

    profiler = contextlib.nullcontext()
    if not args.repaired:
        profiler = torch.autograd.profiler.profile(
            with_stack=True, record_shapes=True, profile_memory=True
        )
    with profiler:
        for step in range(1, args.steps + 1):
            start = step % 16 * batch_size
            x, y = tokens[start : start + batch_size], labels[start : start + batch_size]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                hidden = model["encoder"](model["embedding"](x))
                loss = F.cross_entropy(model["head"](hidden.mean(dim=1)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
