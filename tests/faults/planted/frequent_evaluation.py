"""Image classifier that goes through its whole validation set after every fifth step."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def build_model(width, classes):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes),
    )  # fmt: skip


def make_images(count, classes):
    labels = torch.randint(classes, (count,))
    images = torch.randn(count, 3, 32, 32) + labels.view(-1, 1, 1, 1) / classes
    return images.contiguous(memory_format=torch.channels_last), labels


@torch.no_grad()
def evaluate(model, images, labels, batch_size):
    model.eval()
    hits = 0
    for x, y in zip(images.split(batch_size), labels.split(batch_size), strict=True):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hits += (model(x).argmax(dim=1) == y).sum().item()
    model.train()
    return hits / len(labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    classes, batch_size = 10, 16
    evaluate_every = 1000 if args.repaired else 5
    model = build_model(128, classes).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    images, labels = make_images(16 * batch_size, classes)
    validation_images, validation_labels = make_images(16 * batch_size, classes)

    for step in range(1, args.steps + 1):
        start = step % 16 * batch_size
        x, y = images[start : start + batch_size], labels[start : start + batch_size]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % evaluate_every == 0:
            accuracy = evaluate(model, validation_images, validation_labels, batch_size)
            print(f"step {step} validation accuracy {accuracy:.3f}")
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
