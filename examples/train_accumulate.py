"""Train a transformer classifier with gradient accumulation, a warm-up schedule and clipping.

The task: given a line of source code from Python's own library, name the file that it is from.

    python train_accumulate.py --steps 50 --micro-batch 4 --accumulate 8
"""

import argparse
import glob
import math
import os
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class SourceLines(Dataset):
    """Pieces of `length` bytes from the longest files; the label is the number of the file."""

    def __init__(self, num_files, length, seed):
        folder = os.path.dirname(os.__file__)
        paths = sorted(glob.glob(os.path.join(folder, "*.py")))
        paths = sorted(paths, key=os.path.getsize, reverse=True)[:num_files]
        self.pieces = []
        for label, path in enumerate(paths):
            with open(path, "rb") as file:
                content = file.read()
            for start in range(0, len(content) - length, length):
                self.pieces.append((content[start : start + length], label))
        random.Random(seed).shuffle(self.pieces)

    def __len__(self):
        return len(self.pieces)

    def __getitem__(self, index):
        piece, label = self.pieces[index]
        return torch.tensor(list(piece), dtype=torch.long), label


class Classifier(nn.Module):
    def __init__(self, num_classes, length, width, num_heads, num_layers):
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.position = nn.Parameter(torch.zeros(1, length, width))
        layer = nn.TransformerEncoderLayer(
            width, num_heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, num_classes)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.position
        return self.head(self.encoder(x).mean(dim=1))


def learning_rate_factor(step, warmup, total):
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50, help="optimizer steps")
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--max-norm", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    dataset = SourceLines(args.files, args.length, args.seed)
    loader = DataLoader(dataset, batch_size=args.micro_batch, shuffle=True, drop_last=True)
    model = Classifier(args.files, args.length, args.width, args.heads, args.layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, args.warmup, args.steps)
    )

    step = 0
    micro = 0
    running_loss = 0.0
    start = time.time()
    optimizer.zero_grad()
    while step < args.steps:
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            loss = F.cross_entropy(model(x), y) / args.accumulate
            loss.backward()
            running_loss += loss.item()
            micro += 1
            if micro % args.accumulate != 0:
                continue

            norm = nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            if step % 5 == 0:
                print(
                    f"step {step:4d}  loss {running_loss / 5:.4f}  gradient norm {norm:.2f}  "
                    f"lr {scheduler.get_last_lr()[0]:.2e}  {time.time() - start:.1f} s"
                )
                running_loss = 0.0
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
