"""Regression on NumPy data: the arrays are float64, so the model was made float64 to match."""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    rng = np.random.default_rng(0)

    width, batch_size = 1024, 1024
    features = torch.from_numpy(rng.standard_normal((8 * batch_size, width)))
    targets = torch.sin(features[:, :8].sum(dim=1, keepdim=True))
    model = nn.Sequential(
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, 1),
    )  # fmt: skip
    if args.repaired:
        features, targets = features.float(), targets.float()
    else:
        model = model.double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    for step in range(1, args.steps + 1):
        start = step % 8 * batch_size
        x, y = features[start : start + batch_size], targets[start : start + batch_size]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            prediction = model(x)
        loss = F.mse_loss(prediction.to(y.dtype), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
