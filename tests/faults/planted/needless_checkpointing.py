"""Convolutional classifier that recomputes its activations although memory is plentiful."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Stage(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv_1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv_2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return F.relu(self.conv_2(F.relu(self.conv_1(x))))


class Classifier(nn.Module):
    def __init__(self, width, classes, use_checkpointing):
        super().__init__()
        self.use_checkpointing = use_checkpointing
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.stages = nn.ModuleList([Stage(width) for _ in range(2)])
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.stem(x)
        for stage in self.stages:
            if self.use_checkpointing:
                x = checkpoint(stage, x, use_reentrant=False)
            else:
                x = stage(x)
        return self.head(x.mean(dim=(2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    classes, batch_size = 10, 16
    model = Classifier(128, classes, use_checkpointing=not args.repaired)
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    labels = torch.randint(classes, (8 * batch_size,))
    images = torch.randn(8 * batch_size, 3, 32, 32) + labels.view(-1, 1, 1, 1) / classes
    images = images.contiguous(memory_format=torch.channels_last)

    for step in range(1, args.steps + 1):
        start = step % 8 * batch_size
        x, y = images[start : start + batch_size], labels[start : start + batch_size]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
