"""Autoencoder that keeps each step's reconstruction and its graph, for a plot at the end."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    width, batch_size = 1024, 2048
    model = nn.Sequential(
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    basis = torch.randn(64, width)
    data = torch.tanh(torch.randn(4 * batch_size, 64) @ basis / 8)
    history = []

    for step in range(1, args.steps + 1):
        start = step % 4 * batch_size
        x = data[start : start + batch_size]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            reconstruction = model(x)
        squared_error = F.mse_loss(reconstruction.float(), x, reduction="none")
        loss = squared_error.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if args.repaired:
            history.append(squared_error.detach().mean().item())
        else:
            history.append((reconstruction, squared_error))
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")

    if not args.repaired:
        history = [squared_error.mean().item() for _, squared_error in history]
    print(f"mean error {sum(history) / len(history):.4f}")


if __name__ == "__main__":
    main()
