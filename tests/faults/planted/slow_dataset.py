"""Image classifier whose dataset parses and augments every record again, in the training process."""

import argparse
import json
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 32


def parse_record(line):
    record = json.loads(line)
    pixels = np.array(record["pixels"], dtype=np.float32).reshape(3, SIDE, 3, SIDE, 3)
    pixels = pixels.mean(axis=(2, 4))
    pixels = (pixels - pixels.mean()) / (pixels.std() + 1e-6)
    return torch.from_numpy(pixels), record["label"]


class RecordDataset(Dataset):
    def __init__(self, lines, repaired):
        self.lines = lines
        self.parsed = [parse_record(line) for line in lines] if repaired else None

    def __len__(self):
        return 40 * len(self.lines)

    def __getitem__(self, index):
        index = index % len(self.lines)
        if self.parsed is not None:
            return self.parsed[index]
        return parse_record(self.lines[index])


def make_lines(count):
    generator = random.Random(0)
    lines = []
    for i in range(count):
        pixels = [round(generator.gauss(i % 10, 40.0), 4) for _ in range(3 * 9 * SIDE * SIDE)]
        lines.append(json.dumps({"pixels": pixels, "label": i % 10}))
    return lines


def build_model(width=128, depth=4):
    layers = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    dataset = RecordDataset(make_lines(24), args.repaired)
    loader = DataLoader(dataset, batch_size=16, shuffle=True, drop_last=True)
    model = build_model().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    step = 0
    while step < args.steps:
        for images, labels in loader:
            images = images.contiguous(memory_format=torch.channels_last)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(images), labels)
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
