"""Train a small GPT, character by character, on the source code of Python's own library.

Nothing is downloaded: the text is whatever .py files the running interpreter came with.

    python train_gpt.py --steps 200 --out model.pt
"""

import argparse
import glob
import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def read_library_sources(max_bytes):
    folder = os.path.dirname(os.__file__)
    parts = []
    size = 0
    for path in sorted(glob.glob(os.path.join(folder, "*.py"))):
        with open(path, encoding="utf-8", errors="ignore") as file:
            text = file.read()
        parts.append(text)
        size += len(text)
        if size >= max_bytes:
            break
    return "".join(parts)[:max_bytes]


class TextDataset(Dataset):
    """Consecutive windows of `block_size` characters; the target is the window shifted by one."""

    def __init__(self, codes, block_size):
        self.codes = codes
        self.block_size = block_size

    def __len__(self):
        return (len(self.codes) - 1) // self.block_size

    def __getitem__(self, index):
        start = index * self.block_size
        chunk = self.codes[start : start + self.block_size + 1]
        return chunk[:-1], chunk[1:]


class NewGELU(nn.Module):
    def forward(self, x):
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


class CausalSelfAttention(nn.Module):
    def __init__(self, width, num_heads, block_size, dropout):
        super().__init__()
        assert width % num_heads == 0
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.attn_dropout = nn.Dropout(dropout)
        self.resid_dropout = nn.Dropout(dropout)
        mask = torch.tril(torch.ones(block_size, block_size))
        self.register_buffer("mask", mask.view(1, 1, block_size, block_size))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).split(C, dim=2)
        q = q.view(B, T, self.num_heads, C // self.num_heads).transpose(1, 2)
        k = k.view(B, T, self.num_heads, C // self.num_heads).transpose(1, 2)
        v = v.view(B, T, self.num_heads, C // self.num_heads).transpose(1, 2)

        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        att = self.attn_dropout(att)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.proj(y))


class Block(nn.Module):
    def __init__(self, width, num_heads, block_size, dropout):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = CausalSelfAttention(width, num_heads, block_size, dropout)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            NewGELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class GPT(nn.Module):
    def __init__(self, vocab_size, block_size, num_layers, num_heads, width, dropout):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, width)
        self.position_embedding = nn.Embedding(block_size, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            [Block(width, num_heads, block_size, dropout) for _ in range(num_layers)]
        )
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, idx, targets=None):
        B, T = idx.shape
        positions = torch.arange(T, device=idx.device)
        x = self.token_embedding(idx) + self.position_embedding(positions)
        x = self.drop(x)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln_f(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))
        return logits, loss


def evaluate(model, loader, device, max_batches):
    model.eval()
    losses = []
    with torch.no_grad():
        for i, (x, y) in enumerate(loader):
            if i >= max_batches:
                break
            _, loss = model(x.to(device), y.to(device))
            losses.append(loss.item())
    model.train()
    return sum(losses) / len(losses)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--block-size", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--text-bytes", type=int, default=3_000_000)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--out", default=None, help="where to save the trained model")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    text = read_library_sources(args.text_bytes)
    chars = sorted(set(text))
    char_to_code = {ch: i for i, ch in enumerate(chars)}
    codes = torch.tensor([char_to_code[ch] for ch in text], dtype=torch.long)
    split = int(0.95 * len(codes))
    train_set = TextDataset(codes[:split], args.block_size)
    val_set = TextDataset(codes[split:], args.block_size)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=args.batch_size)

    model = GPT(len(chars), args.block_size, args.layers, args.heads, args.width, args.dropout).to(
        device
    )
    num_params = sum(p.numel() for p in model.parameters())
    print(f"{len(text):,} characters, {len(chars)} distinct, {num_params / 1e6:.1f} M parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1)

    step = 0
    running_loss = 0.0
    last_time = time.time()
    while step < args.steps:
        for x, y in train_loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            _, loss = model(x, y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

            step += 1
            running_loss += loss.item()
            if step % args.log_every == 0:
                now = time.time()
                milliseconds = (now - last_time) / args.log_every * 1000
                last_time = now
                print(
                    f"step {step:4d}  loss {running_loss / args.log_every:.4f}  "
                    f"{milliseconds:.0f} ms/step"
                )
                running_loss = 0.0
            if step >= args.steps:
                break

    print(f"validation loss {evaluate(model, val_loader, device, max_batches=20):.4f}")
    if args.out:
        torch.save({"model": model.state_dict(), "chars": chars}, args.out)
        print(f"saved {args.out}")


if __name__ == "__main__":
    main()
