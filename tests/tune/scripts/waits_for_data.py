"""Starved: every sample takes a few milliseconds to come in, and nobody fetches ahead."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


SAMPLES = int(sys.argv[1]) if len(sys.argv) > 1 else 40_000


class Remote(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((32,), float(index % 7)), torch.tensor(float(index % 3))


def main():
    torch.manual_seed(0)
    loader = DataLoader(Remote(), batch_size=4, shuffle=True)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
