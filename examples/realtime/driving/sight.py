"""The stages that see: raw images to a tensor, encoders, objects from maps."""

import numpy as np
import torch
from torch import nn

from driving.birds_eye import CELL, FIRST_X, FIRST_Y
from driving.cameras import CROP_TOP, DEVIATION, IMAGE_HEIGHT, IMAGE_WIDTH, MEAN, SCALE

THRESHOLD = 0.35
MOST_OBJECTS = 24


def preprocess(images):
    """Raw images (6, 144, 352, 3) uint8 to what the network takes, (6, 3, 64, 176) float32: the sky
    cut off, 2 x 2 pixels averaged, normalised; one camera after the other."""
    prepared = []
    for image in images:
        pixels = image[CROP_TOP:].astype(np.float64) / 255.0
        pixels = pixels.reshape(IMAGE_HEIGHT, SCALE, IMAGE_WIDTH, SCALE, 3).mean(axis=(1, 3))
        pixels = (pixels - MEAN) / DEVIATION
        prepared.append(torch.from_numpy(pixels.transpose(2, 0, 1)).float())
    return torch.stack(prepared)


class EachCamera(nn.Module):
    """Runs a network on one image after the other: (6, 3, 64, 176) to (6, 64, 8, 22)."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, images):
        return torch.cat([self.network(image.unsqueeze(0)) for image in images])


class Detector(nn.Module):
    """The grids to objects (n, 5), the surest first: x, y, length, width, probability."""

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, grids):
        return decode(self.head(grids[0])[0].detach().numpy())


class Segmenter(nn.Module):
    """The grids to the probability of drivable ground, (64, 32)."""

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, grids):
        return torch.sigmoid(self.head(grids[1]))[0, 0].detach().numpy()


def decode(maps):
    """Objects at the peaks of a heat map (5, 64, 32): cells that no neighbour exceeds."""
    heat = 1 / (1 + np.exp(-maps[0]))
    padded = np.pad(heat, 1)
    height, width = heat.shape
    found = []
    for row in range(height):
        for column in range(width):
            value = heat[row, column]
            if value > THRESHOLD and value >= padded[row : row + 3, column : column + 3].max():
                x = FIRST_X + (row + 0.5 + maps[1, row, column]) * CELL
                y = FIRST_Y + (column + 0.5 + maps[2, row, column]) * CELL
                length, width_ = np.exp(maps[3:5, row, column])
                found.append((x, y, length, width_, value))
    found.sort(key=lambda one: -one[4])
    return np.array(found[:MOST_OBJECTS], dtype=np.float32).reshape(-1, 5)
