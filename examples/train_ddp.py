"""Train a small autoencoder on digits with DistributedDataParallel, on GPUs or on CPU cores.

torchrun --nproc_per_node=2 train_ddp.py --steps 100
python train_ddp.py --steps 100              one process, no process group
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Autoencoder(nn.Module):
    def __init__(self, pixels, width, code):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(pixels, width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, code),
        )
        self.decoder = nn.Sequential(
            nn.Linear(code, width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, pixels),
        )

    def forward(self, x):
        return self.decoder(self.encoder(x))


def set_up():
    """Return (rank, world_size, device); join the group only when torchrun started us."""
    rank = int(os.environ.get("RANK", 0))
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        backend = "nccl"
    else:
        device = torch.device("cpu")
        backend = "gloo"
    if world_size > 1:
        dist.init_process_group(backend)
    return rank, world_size, device


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=64, help="per process")
    parser.add_argument("--image-size", type=int, default=24)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--code", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    rank, world_size, device = set_up()
    torch.manual_seed(args.seed)

    images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 16.0
    images = F.interpolate(images, size=args.image_size, mode="bilinear", align_corners=False)
    dataset = TensorDataset(images.flatten(1))
    sampler = DistributedSampler(dataset, world_size, rank, shuffle=True, seed=args.seed)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, drop_last=True)

    model = Autoencoder(args.image_size**2, args.width, args.code).to(device)
    if world_size > 1:
        model = DistributedDataParallel(
            model, device_ids=[device.index] if device.type == "cuda" else None
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    step = 0
    epoch = 0
    start = time.time()
    while step < args.steps:
        sampler.set_epoch(epoch)
        for (x,) in loader:
            x = x.to(device)
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), x)
            loss.backward()
            optimizer.step()

            step += 1
            if step % 10 == 0:
                mean_loss = loss.detach()
                if world_size > 1:
                    dist.all_reduce(mean_loss)
                    mean_loss /= world_size
                if rank == 0:
                    samples = step * args.batch_size * world_size
                    print(
                        f"step {step:4d}  loss {mean_loss.item():.5f}  "
                        f"{samples / (time.time() - start):.0f} samples/s",
                        flush=True,
                    )
            if step >= args.steps:
                break
        epoch += 1

    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
