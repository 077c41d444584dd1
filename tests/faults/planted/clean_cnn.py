"""Image classifier with nothing wrong: channels last, bfloat16, fused SGD, a light loader."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Stage(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv_1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv_2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return F.relu(self.conv_2(F.relu(self.conv_1(x))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)

    width, classes, batch_size = 256, 10, 16
    labels = torch.randint(classes, (32 * batch_size,))
    images = torch.randn(len(labels), 3, 32, 32) + labels.view(-1, 1, 1, 1) / classes
    loader = DataLoader(TensorDataset(images, labels), batch_size=batch_size, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1), nn.ReLU(),
        Stage(width), Stage(width),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes),
    ).to(memory_format=torch.channels_last)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)

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
