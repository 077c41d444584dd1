"""Autoencoder that prints weights, gradients and outputs at every step, for a look at them."""

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
    torch.set_printoptions(edgeitems=8)

    width, batch_size = 1024, 1024
    model = nn.Sequential(
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    basis = torch.randn(64, width)
    data = torch.tanh(torch.randn(8 * batch_size, 64) @ basis / 8)

    for step in range(1, args.steps + 1):
        start = step % 8 * batch_size
        x = data[start : start + batch_size]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            reconstruction = model(x)
        loss = F.mse_loss(reconstruction.float(), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not args.repaired:
            print("reconstruction", reconstruction)
            for name, parameter in model.named_parameters():
                print(name, parameter)
                print(name, "gradient", parameter.grad)
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
