"""Sentence classifier that pads every sentence to the longest one it might ever meet."""

import argparse
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

MAX_LENGTH = 512
PAD = 0


class SentenceClassifier(nn.Module):
    def __init__(self, vocab, width, classes):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width, padding_idx=PAD)
        self.position = nn.Parameter(torch.zeros(MAX_LENGTH, width))
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_1 = nn.LayerNorm(width)
        self.norm_2 = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens):
        B, T = tokens.shape
        kept = tokens != PAD
        x = self.embedding(tokens) + self.position[:T]
        q, k, v = self.qkv(self.norm_1(x)).view(B, T, 3, 8, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=kept[:, None, None, :])
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        x = x + self.down(F.relu(self.up(self.norm_2(x))))
        weights = kept.unsqueeze(-1).to(x.dtype)
        return self.head((x * weights).sum(dim=1) / weights.sum(dim=1))


def pad_to_maximum(batch):
    tokens = torch.full((len(batch), MAX_LENGTH), PAD)
    for row, (sentence, _) in enumerate(batch):
        tokens[row, : len(sentence)] = sentence
    return tokens, torch.tensor([label for _, label in batch])


def pad_to_longest(batch):
    tokens = pad_sequence([sentence for sentence, _ in batch], True, PAD)
    return tokens, torch.tensor([label for _, label in batch])


def make_sentences(count, vocab, classes):
    generator = random.Random(0)
    sentences = []
    for _ in range(count):
        length = generator.randint(116, 128)
        sentence = torch.tensor([generator.randrange(1, vocab) for _ in range(length)])
        sentences.append((sentence, int(sentence[:4].sum()) % classes))
    return sentences


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    vocab, classes, batch_size = 500, 8, 16
    collate = pad_to_longest if args.repaired else pad_to_maximum
    loader = DataLoader(
        make_sentences(64 * batch_size, vocab, classes),
        batch_size=batch_size,
        shuffle=True,
        collate_fn=collate,
    )
    model = SentenceClassifier(vocab, 512, classes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

    step = 0
    while step < args.steps:
        for tokens, labels in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(tokens), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
