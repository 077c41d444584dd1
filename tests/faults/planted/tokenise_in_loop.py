"""Word model whose byte-pair tokeniser, written in Python, runs in the training loop."""

import argparse
import collections
import inspect

import torch
import torch.nn.functional as F
from torch import nn

LENGTH = 256


def merge(codes, pair, new):
    merged, i = [], 0
    while i < len(codes):
        if i + 1 < len(codes) and (codes[i], codes[i + 1]) == pair:
            merged.append(new)
            i += 2
        else:
            merged.append(codes[i])
            i += 1
    return merged


def learn_merges(text, count):
    codes, merges = list(text.encode()), {}
    for new in range(256, 256 + count):
        pairs = collections.Counter(zip(codes, codes[1:], strict=False))
        best = max(pairs, key=pairs.get)
        merges[best] = new
        codes = merge(codes, best, new)
    return merges


def tokenise(text, merges):
    """The tokens of `text`: the pair that was learnt first is merged first."""
    codes = list(text.encode())
    while True:
        pairs = set(zip(codes, codes[1:], strict=False))
        pair = min(pairs, key=lambda p: merges.get(p, len(merges) + 256))
        if pair not in merges:
            break
        codes = merge(codes, pair, merges[pair])
    return (codes + [32] * LENGTH)[: LENGTH + 1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    text = inspect.getsource(argparse)
    merges = learn_merges(text[:4000], 64)
    vocab, width, batch_size = 256 + len(merges), 1024, 8
    passages = [text[i * 2000 : i * 2000 + 700] for i in range(4 * batch_size)]
    if args.repaired:
        passages = torch.tensor([tokenise(passage, merges) for passage in passages])

    model = nn.Sequential(
        nn.Embedding(vocab, width),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, vocab),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

    for step in range(1, args.steps + 1):
        start = step % 4 * batch_size
        batch = passages[start : start + batch_size]
        if not args.repaired:
            batch = torch.tensor([tokenise(passage, merges) for passage in batch])
        x, y = batch[:, :-1], batch[:, 1:]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
