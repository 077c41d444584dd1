"""Two processes that accumulate gradients, and average them after every single micro-batch.

torchrun --nproc_per_node=2 missing_no_sync.py
"""

import argparse
import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)

    width, classes, micro_batch_size, accumulation = 1024, 32, 384, 8
    model = DistributedDataParallel(
        nn.Sequential(
            nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, classes),
        )
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    torch.manual_seed(1 + rank)
    inputs = torch.randn(8 * micro_batch_size, width)
    labels = inputs[:, :classes].argmax(dim=1)

    for step in range(1, args.steps + 1):
        optimizer.zero_grad()
        for micro in range(accumulation):
            start = micro * micro_batch_size
            x = inputs[start : start + micro_batch_size]
            y = labels[start : start + micro_batch_size]
            last = micro == accumulation - 1
            waits = args.repaired and not last
            with model.no_sync() if waits else contextlib.nullcontext():
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = F.cross_entropy(model(x), y) / accumulation
                loss.backward()
        optimizer.step()
        if step % 10 == 0 and rank == 0:
            print(f"step {step} loss {loss.item() * accumulation:.4f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
