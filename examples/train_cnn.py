"""Train a small residual CNN on scikit-learn's handwritten digits, scaled up to 32 x 32.

Nothing is downloaded: the digits come with scikit-learn.

    python train_cnn.py --steps 200
"""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class ResidualBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        h = self.bn2(self.conv2(h))
        return F.relu(x + h)


class DigitNet(nn.Module):
    def __init__(self, channels, num_blocks, num_classes=10):
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.stage1 = nn.Sequential(*[ResidualBlock(channels) for _ in range(num_blocks)])
        self.down = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.stage2 = nn.Sequential(*[ResidualBlock(2 * channels) for _ in range(num_blocks)])
        self.fc = nn.Linear(2 * channels, num_classes)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = self.stage1(x)
        x = F.relu(self.down(x))
        x = self.stage2(x)
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        return self.fc(x)


def load_data(image_size):
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    images = F.interpolate(images, size=image_size, mode="bilinear", align_corners=False)
    labels = torch.tensor(digits.target, dtype=torch.long)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return images[order], labels[order]


def accuracy(model, images, labels, device):
    model.eval()
    hits = 0
    with torch.no_grad():
        for x, y in zip(images.split(128), labels.split(128), strict=True):
            hits += (model(x.to(device)).argmax(dim=1) == y.to(device)).sum().item()
    model.train()
    return hits / len(labels)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--channels", type=int, default=48)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    images, labels = load_data(args.image_size)
    train_set = TensorDataset(images[:1500], labels[:1500])
    loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = DigitNet(args.channels, args.blocks).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss()

    step = 0
    start = time.time()
    while step < args.steps:
        running_loss, running_hits, seen = 0.0, 0, 0
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            logits = model(x)
            loss = criterion(logits, y)
            loss.backward()
            optimizer.step()

            running_loss += loss.item() * len(y)
            running_hits += (logits.argmax(dim=1) == y).sum().item()
            seen += len(y)
            step += 1
            if step % 20 == 0:
                print(
                    f"step {step:4d}  loss {running_loss / seen:.4f}  "
                    f"accuracy {running_hits / seen:.3f}  {time.time() - start:.1f} s"
                )
            if step >= args.steps:
                break

    print(f"test accuracy {accuracy(model, images[1500:], labels[1500:], device):.3f}")


if __name__ == "__main__":
    main()
