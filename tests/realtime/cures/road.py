"""A small pipeline that most cures apply to: three tasks, each with an encoder of equal weights."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from ridgeline.realtime.pipeline import Pipeline

CAMERAS, HEIGHT, WIDTH = 4, 32, 64


def encoder() -> nn.Module:
    """An encoder with the weights that all have."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, 2, 1),
        ).eval()


class Task:
    """An encoder on each camera in turn, and a head on what it gives."""

    def __init__(self, seed: int) -> None:
        self.encoder = encoder()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.head = nn.Conv2d(16, 4, 1)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        features = [self.encoder(image[None]) for image in images]
        return self.head(torch.cat(features)).mean(dim=(2, 3))


def preprocess(images: Any) -> torch.Tensor:
    """Raw images to what the encoders take, one after the other."""
    prepared = []
    for image in images:
        pixels = image[2:].astype(np.float64) / 255.0
        pixels = pixels.reshape(HEIGHT, 2, WIDTH, 2, 3).mean(axis=(1, 3))
        pixels = (pixels - np.array([0.4, 0.5, 0.6])) / np.array([0.2, 0.25, 0.3])
        prepared.append(torch.from_numpy(pixels.transpose(2, 0, 1)).float())
    return torch.stack(prepared)


def cameras(frame: int) -> Any:
    """Raw images of all cameras."""
    shape = (CAMERAS, 2 * HEIGHT + 2, 2 * WIDTH, 3)
    return np.random.default_rng(frame).integers(0, 256, shape, dtype=np.uint8)


def plan(objects: torch.Tensor, lanes: torch.Tensor, depths: torch.Tensor) -> dict[str, Any]:
    """All that was found."""
    return {"objects": objects, "speed": float(lanes.detach().sum() + depths.detach().sum())}


def three_tasks(make: Callable[[int], Any] = Task) -> Pipeline:
    """The pipeline."""
    made = Pipeline("road", deadline="33ms")
    camera = made.sensor("camera", cameras, rate="30Hz")
    images = made.stage("preprocess", preprocess, camera)
    tasks = [made.stage(name, make(seed), images) for seed, name in enumerate(("detect", "lane"))]
    depth = made.stage("depth", make(7), images)
    made.stage("plan", plan, *tasks, depth)
    return made
