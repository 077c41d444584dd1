"""Train a GAN on scikit-learn's handwritten digits: two networks, two optimizers, one loop.

python train_gan.py --steps 200
"""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


def make_generator(latent, channels):
    return nn.Sequential(
        nn.ConvTranspose2d(latent, 4 * channels, 4, 1, 0, bias=False),
        nn.BatchNorm2d(4 * channels),
        nn.ReLU(True),
        nn.ConvTranspose2d(4 * channels, 2 * channels, 4, 2, 1, bias=False),
        nn.BatchNorm2d(2 * channels),
        nn.ReLU(True),
        nn.ConvTranspose2d(2 * channels, channels, 4, 2, 1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(True),
        nn.ConvTranspose2d(channels, 1, 4, 2, 1, bias=False),
        nn.Tanh(),
    )


def make_discriminator(channels):
    return nn.Sequential(
        nn.Conv2d(1, channels, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(channels, 2 * channels, 4, 2, 1, bias=False),
        nn.BatchNorm2d(2 * channels),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(2 * channels, 4 * channels, 4, 2, 1, bias=False),
        nn.BatchNorm2d(4 * channels),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(4 * channels, 1, 4, 1, 0, bias=False),
        nn.Flatten(0),
    )


def init_weights(module):
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--latent", type=int, default=64)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 8.0 - 1.0
    images = F.interpolate(images, size=32, mode="bilinear", align_corners=False)
    loader = DataLoader(
        TensorDataset(images), batch_size=args.batch_size, shuffle=True, drop_last=True
    )

    generator = make_generator(args.latent, args.channels).to(device)
    discriminator = make_discriminator(args.channels).to(device)
    generator.apply(init_weights)
    discriminator.apply(init_weights)
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=args.lr, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=args.lr, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()

    step = 0
    start = time.time()
    while step < args.steps:
        for (real,) in loader:
            real = real.to(device)
            ones = torch.ones(len(real), device=device)
            zeros = torch.zeros(len(real), device=device)

            # The discriminator learns to tell real digits from generated ones.
            noise = torch.randn(len(real), args.latent, 1, 1, device=device)
            fake = generator(noise)
            optimizer_d.zero_grad()
            loss_real = criterion(discriminator(real), ones)
            loss_fake = criterion(discriminator(fake.detach()), zeros)
            loss_d = loss_real + loss_fake
            loss_d.backward()
            optimizer_d.step()

            # The generator learns to have its digits taken for real.
            optimizer_g.zero_grad()
            loss_g = criterion(discriminator(fake), ones)
            loss_g.backward()
            optimizer_g.step()

            step += 1
            if step % 20 == 0:
                print(
                    f"step {step:4d}  loss_d {loss_d.item():.4f}  loss_g {loss_g.item():.4f}  "
                    f"{(time.time() - start) / step * 1000:.0f} ms/step"
                )
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
