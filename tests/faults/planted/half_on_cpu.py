"""Contrastive pairs of views; the similarity matrix is computed in float16, as on the GPU."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Encoder(nn.Module):
    def __init__(self, width, features):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(width, features)

    def forward(self, x):
        return F.normalize(self.head(self.body(x)).float(), dim=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    width, features, batch_size = 1024, 128, 512
    similarity_dtype = torch.bfloat16 if args.repaired else torch.float16
    model = Encoder(width, features)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    items = torch.randn(8 * batch_size, width)
    same = torch.arange(batch_size)

    for step in range(1, args.steps + 1):
        start = step % 8 * batch_size
        x = items[start : start + batch_size]
        views = torch.cat([x + 0.5 * torch.randn_like(x), x + 0.5 * torch.randn_like(x)])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            left, right = model(views).chunk(2)
        with torch.autocast("cpu", dtype=similarity_dtype):
            logits = left @ right.T
        loss = F.cross_entropy(logits.float() / 0.1, same)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
