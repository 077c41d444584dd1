"""Autoencoder that writes a whole checkpoint after every step, so that nothing is ever lost."""

import argparse
import os
import tempfile

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
    save_every = 1000 if args.repaired else 1
    model = nn.Sequential(
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    basis = torch.randn(64, width)
    data = torch.tanh(torch.randn(4 * batch_size, 64) @ basis / 8)

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "checkpoint.pt")
        for step in range(1, args.steps + 1):
            start = step % 4 * batch_size
            x = data[start : start + batch_size]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                reconstruction = model(x)
            loss = F.mse_loss(reconstruction.float(), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % save_every == 0:
                torch.save(
                    {
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "step": step,
                    },
                    path,
                )
            if step % 10 == 0:
                print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
