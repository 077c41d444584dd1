"""Run a transformer encoder over a stream of requests and report its latency. No training.

python infer.py --steps 100
"""

import argparse
import glob
import os
import statistics
import time

import torch
import torch.nn as nn


class Encoder(nn.Module):
    def __init__(self, length, width, num_heads, num_layers, num_classes):
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.position = nn.Parameter(torch.randn(1, length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, num_heads, 4 * width, dropout=0.1, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.position[:, : tokens.size(1)]
        x = self.norm(self.encoder(x))
        return self.head(x.mean(dim=1))


def requests(batch_size, length):
    """Batches of byte windows from Python's own library sources, without end."""
    folder = os.path.dirname(os.__file__)
    paths = sorted(glob.glob(os.path.join(folder, "*.py")))
    windows = []
    while True:
        for path in paths:
            with open(path, "rb") as file:
                content = file.read()
            for start in range(0, len(content) - length, length):
                windows.append(list(content[start : start + length]))
                if len(windows) == batch_size:
                    yield torch.tensor(windows)
                    windows = []


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="batches to answer")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--classes", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Encoder(args.length, args.width, args.heads, args.layers, args.classes).to(device)
    model.eval()

    latencies = []
    counts = torch.zeros(args.classes, dtype=torch.long)
    stream = requests(args.batch_size, args.length)
    with torch.no_grad():
        for step in range(1, args.steps + 1):
            tokens = next(stream).to(device)
            start = time.perf_counter()
            labels = model(tokens).argmax(dim=1).cpu()
            latencies.append(time.perf_counter() - start)
            counts += torch.bincount(labels, minlength=args.classes)
            if step % 20 == 0:
                recent = statistics.median(latencies[-20:])
                print(f"batch {step:4d}  median latency {recent * 1000:.1f} ms")

    ordered = sorted(latencies)
    p50 = ordered[len(ordered) // 2]
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    print(
        f"p50 {p50 * 1000:.1f} ms  p99 {p99 * 1000:.1f} ms  {args.batch_size / p50:.1f} requests/s"
    )
    print(f"labels {counts.tolist()}")


if __name__ == "__main__":
    main()
