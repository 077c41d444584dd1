"""Train a small CNN on images whose decoding and augmentation cost more than the training.

Every record is a compressed text line, as an export from a database might give it. The data set
decodes it, crops it, turns it and adds noise, in plain NumPy, inside `__getitem__`.

    python train_input_bound.py --steps 200
"""

import argparse
import base64
import json
import time
import zlib

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset


def encode_records(scale):
    digits = load_digits()
    records = []
    for image, label in zip(digits.images, digits.target, strict=True):
        pixels = np.kron(image, np.ones((scale, scale))).astype(np.uint8).tolist()
        line = json.dumps({"label": int(label), "pixels": pixels})
        records.append(base64.b64encode(zlib.compress(line.encode())))
    return records


class AugmentedDigits(Dataset):
    def __init__(self, records, image_size):
        self.records = records
        self.image_size = image_size

    def __len__(self):
        return len(self.records)

    def decode(self, record):
        fields = json.loads(zlib.decompress(base64.b64decode(record)))
        return np.array(fields["pixels"], dtype=np.float32) / 16.0, fields["label"]

    def random_crop(self, image):
        limit = image.shape[0] - self.image_size
        top, left = torch.randint(0, limit + 1, (2,)).tolist()
        return image[top : top + self.image_size, left : left + self.image_size]

    def rotate(self, image, degrees):
        """Nearest-neighbour rotation about the centre."""
        angle = np.deg2rad(degrees)
        size = image.shape[0]
        centre = (size - 1) / 2
        rows, columns = np.mgrid[0:size, 0:size] - centre
        source_rows = np.cos(angle) * rows - np.sin(angle) * columns + centre
        source_columns = np.sin(angle) * rows + np.cos(angle) * columns + centre
        source_rows = np.clip(np.rint(source_rows), 0, size - 1).astype(int)
        source_columns = np.clip(np.rint(source_columns), 0, size - 1).astype(int)
        return image[source_rows, source_columns]

    def __getitem__(self, index):
        image, label = self.decode(self.records[index])
        image = self.rotate(image, degrees=torch.empty(1).uniform_(-20, 20).item())
        image = self.random_crop(image)
        image = image + 0.05 * torch.randn(image.shape).numpy()
        image = (image - image.mean()) / (image.std() + 1e-6)
        return torch.from_numpy(image).float().unsqueeze(0), label


class SmallNet(nn.Module):
    def __init__(self, channels, num_classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(2 * channels, 4 * channels, 3, stride=2, padding=1)
        self.fc = nn.Linear(4 * channels, num_classes)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.relu(self.conv3(x))
        return self.fc(x.mean(dim=(2, 3)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    dataset = AugmentedDigits(encode_records(scale=9), args.image_size)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = SmallNet(args.channels).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    step = 0
    running_loss = 0.0
    start = time.time()
    while step < args.steps:
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()

            running_loss += loss.item()
            step += 1
            if step % 20 == 0:
                print(
                    f"step {step:4d}  loss {running_loss / 20:.4f}  "
                    f"{args.batch_size * step / (time.time() - start):.0f} images/s"
                )
                running_loss = 0.0
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
