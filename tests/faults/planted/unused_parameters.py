"""Two processes that search the graph for unused parameters at every step; there are none.

torchrun --nproc_per_node=2 unused_parameters.py
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + F.relu(self.linear(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)

    width, classes, batch_size = 128, 32, 1024
    model = DistributedDataParallel(
        nn.Sequential(*[Residual(width) for _ in range(64)], nn.Linear(width, classes)),
        find_unused_parameters=not args.repaired,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    torch.manual_seed(1 + rank)
    inputs = torch.randn(8 * batch_size, width)
    labels = inputs[:, :classes].argmax(dim=1)

    for step in range(1, args.steps + 1):
        start = step % 8 * batch_size
        x, y = inputs[start : start + batch_size], labels[start : start + batch_size]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
