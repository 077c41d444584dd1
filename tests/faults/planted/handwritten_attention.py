"""Language model on long sequences whose attention is written out with softmax and a mask."""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, num_heads, repaired):
        super().__init__()
        self.num_heads = num_heads
        self.repaired = repaired
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        if self.repaired:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
            future = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)
            scores = scores.masked_fill(future, float("-inf"))
            y = F.softmax(scores, dim=-1).to(v.dtype) @ v
        return self.proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, width, num_heads, repaired):
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.attention = Attention(width, num_heads, repaired)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class LanguageModel(nn.Module):
    def __init__(self, vocab, width, num_heads, num_layers, repaired):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.blocks = nn.Sequential(*[Block(width, num_heads, repaired) for _ in range(num_layers)])
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens):
        return self.head(self.blocks(self.embedding(tokens)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    vocab, length, batch_size = 256, 1024, 2
    model = LanguageModel(vocab, 512, 8, 1, args.repaired)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    text = torch.cumsum(torch.randint(1, 4, (200_000,)), dim=0) % vocab

    for step in range(1, args.steps + 1):
        starts = torch.randint(len(text) - length - 1, (batch_size,))
        x = torch.stack([text[s : s + length] for s in starts])
        y = torch.stack([text[s + 1 : s + length + 1] for s in starts])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x).view(-1, vocab), y.view(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
