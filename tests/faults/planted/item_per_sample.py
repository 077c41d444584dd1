"""Classifier whose metrics are added up sample by sample, with one `.item()` for each number."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def measure_by_sample(logits, labels):
    hits, confidence, margin = 0, 0.0, 0.0
    confidences, predictions = logits.softmax(dim=1).max(dim=1)
    first_two = logits.topk(2, dim=1).values
    for i in range(len(labels)):
        if predictions[i].item() == labels[i].item():
            hits += 1
        confidence += confidences[i].item()
        margin += first_two[i, 0].item() - first_two[i, 1].item()
    return hits / len(labels), confidence / len(labels), margin / len(labels)


def measure_at_once(logits, labels):
    confidences, predictions = logits.softmax(dim=1).max(dim=1)
    first_two = logits.topk(2, dim=1).values
    hits = (predictions == labels).float().mean()
    margin = (first_two[:, 0] - first_two[:, 1]).mean()
    return torch.stack([hits, confidences.mean(), margin]).tolist()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    width, classes, batch_size = 1024, 32, 2048
    model = nn.Sequential(
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, classes),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    inputs = torch.randn(4 * batch_size, width)
    labels = (inputs @ torch.randn(width, classes)).argmax(dim=1)
    measure = measure_at_once if args.repaired else measure_by_sample

    for step in range(1, args.steps + 1):
        start = step % 4 * batch_size
        x, y = inputs[start : start + batch_size], labels[start : start + batch_size]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(x)
        loss = F.cross_entropy(logits.float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        accuracy, confidence, margin = measure(logits.detach().float(), y)
        if step % 10 == 0:
            print(
                f"step {step} loss {loss.item():.4f} accuracy {accuracy:.3f} "
                f"confidence {confidence:.3f} margin {margin:.3f}"
            )


if __name__ == "__main__":
    main()
