# ruff: noqa: N812, N817, PLR0915, SIM108, T201
"""An ordinary small training script with whatever habits its arguments give it."""

import argparse
import contextlib
import gc
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset


class Items(Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(count, 3, 8, 8, generator=generator)
        self.y = torch.randint(5, (count,), generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


class Block(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.down(F.gelu(self.up(x))))


class Net(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        width = 24
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.blocks = nn.ModuleList([Block(width, args.dropout) for _ in range(4)])
        self.norm = nn.LayerNorm(width) if args.norms else nn.Identity()
        self.attention = nn.Linear(width, 3 * width)
        self.head = nn.Linear(width, args.classes)
        if args.graph:
            places = torch.stack([torch.arange(64), torch.arange(64).roll(3)])
            self.graph = torch.sparse_coo_tensor(places, torch.linspace(1, 2, 64))

    def forward(self, x):
        x = F.relu(self.second(F.relu(self.stem(x)))).flatten(2).transpose(1, 2)
        for block in self.blocks:
            if self.args.checkpoint:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        if self.args.graph:
            x = torch.stack([self.graph @ one for one in x])
        if self.args.drawn:
            x = torch.distributions.Normal(x, 0.1).rsample()
        x = self.norm(x)
        q, k, v = self.attention(x).unsqueeze(1).chunk(3, dim=-1)
        if self.args.by_hand:
            weights = torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, dim=-1)
            return self.head((x + (weights @ v).squeeze(1)).mean(dim=1))
        math = sdpa_kernel(SDPBackend.MATH) if self.args.math else contextlib.nullcontext()
        with math:
            x = x + F.scaled_dot_product_attention(q, k, v).squeeze(1)
        return self.head(x.mean(dim=1))


def stacked(series, places):
    return torch.stack([series[i : i + 192] for i in places])


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--epoch-steps", type=int, default=100)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--classes", type=int, default=5)
    parser.add_argument("--optimizer", default="AdamW")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    for switch in ("anomaly", "collect", "checkpoint", "math", "profiler", "deterministic",
                   "in-place", "ddp", "unused", "empty-cache", "clip", "flush",
                   "infer", "by-hand", "norms", "graph", "slices", "drawn", "follows"):  # fmt: skip
        parser.add_argument(f"--{switch}", action="store_true")
    return parser.parse_args()


def infer(args):
    """Calls without a backward; the outputs stand in for losses."""
    model = Net(args).eval()
    items = Items(64)
    answers = []
    for first in range(0, 64, 8):
        x = torch.stack([items[i][0] for i in range(first, first + 8)])
        answers.append(float(model(x).detach().mean()))
    return answers, sum(float(p.detach().double().abs().sum()) for p in model.parameters())


def main():
    args = arguments()
    torch.manual_seed(0)
    if args.infer:
        return infer(args)
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.anomaly:
        torch.autograd.set_detect_anomaly(True)
    if args.deterministic:
        torch.use_deterministic_algorithms(True)
    if args.ddp:
        dist.init_process_group("gloo")

    model = Net(args)
    followed = Net(args) if args.follows else None
    if args.ddp:
        model = DDP(model, find_unused_parameters=args.unused)
    optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=1e-2)
    loader = DataLoader(
        Items(args.epoch_steps * 8),
        batch_size=8,
        shuffle=True,
        num_workers=args.workers,
    )
    rank = int(os.environ.get("RANK", "0"))
    profiler = torch.profiler.profile() if args.profiler else contextlib.nullcontext()
    series = torch.linspace(-1, 1, 1000) ** 3
    losses = []
    passes = 0
    with profiler:
        while len(losses) < args.steps * args.accumulate:
            for drawn, y in loader:
                x = drawn
                if args.slices:
                    x = stacked(series, torch.randint(800, (8,))).view(8, 3, 8, 8)
                if followed is not None:
                    x = x + followed(x).mean()
                loss = F.cross_entropy(model(x + rank), y)
                (loss / args.accumulate).backward()
                losses.append(loss.item())
                passes += 1
                if passes % args.accumulate == 0:
                    if args.clip:
                        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=not args.in_place)
                done = len(losses) >= args.steps * args.accumulate
                if args.collect:
                    gc.collect()
                if args.empty_cache:
                    torch.cuda.empty_cache()
                if done:
                    break
            if args.flush and passes % args.accumulate:  # the epoch ended amid a cycle
                optimizer.step()
                optimizer.zero_grad()
                passes = 0
    if args.profiler:
        assert "aten::linear" in profiler.key_averages().table()
    weight = sum(float(p.detach().double().abs().sum()) for p in model.parameters())
    if args.ddp:
        gathered = [torch.zeros(()) for _ in range(dist.get_world_size())]
        total = torch.tensor(weight)
        dist.all_gather(gathered, total)
        assert all(torch.equal(total, other) for other in gathered), gathered
        dist.barrier()
        del model, optimizer  # before the group goes: gloo can hang in the other order
        dist.destroy_process_group()
    return losses, weight


if __name__ == "__main__":
    LOSSES, WEIGHT = main()
    print(f"losses {LOSSES} weight {WEIGHT:.9f}")
