"""Image classifier that reads each image from slow storage, and waits for every one of them."""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class RemoteImages(Dataset):
    """Images in memory; the pause stands for the round trip to an object store."""

    def __init__(self, count, classes, round_trip_seconds):
        self.labels = torch.randint(classes, (count,))
        self.images = torch.randn(count, 3, 32, 32) + self.labels.view(-1, 1, 1, 1) / classes
        self.round_trip_seconds = round_trip_seconds

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        time.sleep(self.round_trip_seconds)
        return self.images[index], self.labels[index]


def build_model(width, classes):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes),
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    classes, batch_size = 10, 16
    dataset = RemoteImages(128 * batch_size, classes, round_trip_seconds=0.002)
    if args.repaired:
        loader = DataLoader(
            dataset,
            batch_size=batch_size,
            shuffle=True,
            num_workers=2,
            prefetch_factor=4,
            persistent_workers=True,
        )
    else:
        loader = DataLoader(dataset, batch_size=batch_size, shuffle=True)
    model = build_model(128, classes).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

    step = 0
    while step < args.steps:
        for x, y in loader:
            x = x.contiguous(memory_format=torch.channels_last)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
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
