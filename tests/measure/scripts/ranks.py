"""Data parallel over gloo; started by torchrun, or spawning its own ranks with `spawn`."""

import os
import socket
import sys

import torch
import torch.distributed as dist
from torch import nn


def main(rank=None, world=None, port=None):
    if rank is not None:
        os.environ.update(
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            RANK=str(rank),
            WORLD_SIZE=str(world),
            LOCAL_RANK=str(rank),
        )
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = nn.parallel.DistributedDataParallel(nn.Linear(512, 512))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        model(torch.randn(4, 512)).pow(2).mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    if "spawn" in sys.argv:
        with socket.socket() as held:  # bound while the ranks run, so that nobody else gets it
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("127.0.0.1", 0))
            torch.multiprocessing.spawn(main, args=(2, held.getsockname()[1]), nprocs=2)
    else:
        main()
