"""What training with rounded weights wins back of the accuracy that 4-bit weights cost.

    python bench/qat_images.py IMAGES SCRIPT.py:NAME WEIGHTS.safetensors [--steps 300]

IMAGES has the folders train/ and test/ with a folder for each class, SCRIPT makes the network,
WEIGHTS are its trained ones. Networks are judged on the same held-out images: as given; rounded to
4 bits after training, to nearest and by GPTQ; trained on with `[quantisation]`, then rounded to
nearest, as it was trained. As a control the network is also trained on in floats, for as long, and
then rounded in both ways: what that loses is the loss, and the share of it that training with
rounding wins back is printed.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn

from ridgeline.compress.vision.quantise import quantise
from ridgeline.image_files.source import open_images
from ridgeline.records.recipe import Recipe
from ridgeline.train.images.model import image_skeleton
from ridgeline.train.images.views import judged_view
from ridgeline.train.start import train_recipe

SCHEME = "w4a8-int8-rtn"
BY_GPTQ = "w4a8-int8"
JUDGED = 2000
CALIBRATED = 256
BATCH = 128


def main() -> None:
    """Print one line for each network."""
    options = argparse.ArgumentParser()
    options.add_argument("images", type=Path)
    options.add_argument("script")
    options.add_argument("weights", type=Path)
    options.add_argument("--steps", type=int, default=300)
    given = options.parse_args()
    start = recipe(given.images, given.script, given.weights, given.steps, rounded=False)
    whole = image_skeleton(start, torch.float32).eval()
    exact = top1(whole, start, given.images)
    print(f"as given                   top-1 {exact:.4f}", flush=True)
    rounded = [rounded_top1(whole, start, given.images, one) for one in (SCHEME, BY_GPTQ)]
    print(f"rounded after training     top-1 {rounded[0]:.4f}, GPTQ {rounded[1]:.4f}", flush=True)
    network, wanted = trained_on(given, rounded=False)
    floats = top1(network, wanted, given.images)
    control = [rounded_top1(network, wanted, given.images, one) for one in (SCHEME, BY_GPTQ)]
    print(f"trained on in floats       top-1 {floats:.4f}")
    print(f"  and rounded              top-1 {control[0]:.4f}, GPTQ {control[1]:.4f}", flush=True)
    found = rounded_top1(*trained_on(given, rounded=True), given.images, SCHEME)
    print(f"trained with rounding      top-1 {found:.4f}")
    plain, gptq = (won_back(found, floats, one) for one in control)
    print(f"won back                   {plain} of it, {gptq} of GPTQ's loss")


def won_back(found: float, floats: float, rounded: float) -> str:
    """The share of what rounding lost; nothing where it lost nothing."""
    return f"{(found - rounded) / (floats - rounded):.0%}" if rounded < floats else "nothing lost"


def trained_on(given: argparse.Namespace, *, rounded: bool) -> tuple[nn.Module, Recipe]:
    """The network after so many more steps, and its recipe."""
    wanted = recipe(given.images, given.script, given.weights, given.steps, rounded=rounded)
    with tempfile.TemporaryDirectory() as folder:
        train_recipe(wanted, Path(folder))
        weights = Path(folder) / "model"
        trained = recipe(given.images, given.script, weights, given.steps, rounded=False)
        return image_skeleton(trained, torch.float32).eval(), trained


def recipe(images: Path, script: str, weights: Path, steps: int, *, rounded: bool) -> Recipe:
    """The course of both trainings; only rounding differs."""
    tables = {
        "model": {"script": script, "checkpoint": str(weights)},
        "images": {
            "path": str(images / "train"), "size": 32, "classes": 10, "crop": "padded",
            "centre_share": 1.0, "workers": 1,
        },
        "layout": {
            "micro_batch": BATCH, "global_batch": BATCH, "precision": "fp32", "compiled": False,
        },
        "optimizer": {
            "name": "sgd", "momentum": 0.9, "learning_rate": 0.01, "final_learning_rate": 0.0,
            "warmup_steps": 0, "weight_decay": 1e-4,
        },
        "run": {"steps": steps},
        "checkpoint": {"keep": 0},
    }  # fmt: skip
    if rounded:
        tables["quantisation"] = {"scheme": SCHEME}
    return msgspec.convert(tables, type=Recipe)


def rounded_top1(network: nn.Module, wanted: Recipe, images: Path, scheme: str) -> float:
    """Accuracy after rounding by a scheme, calibrated on training images."""
    batches = [pixels for pixels, _ in read(images / "train", wanted, CALIBRATED)]
    return top1(quantise(network, batches, scheme).module, wanted, images)


@torch.no_grad()
def top1(network: nn.Module, wanted: Recipe, images: Path) -> float:
    """Accuracy on held-out images."""
    right = [
        int((network(pixels).argmax(-1) == labels).sum())
        for pixels, labels in read(images / "test", wanted, JUDGED)
    ]
    return sum(right) / JUDGED


def read(path: Path, wanted: Recipe, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Every n-th image, as validation sees it."""
    assert wanted.images is not None
    source = open_images("IMAGES", path)
    assert source.labels is not None
    mean, deviation = (torch.tensor(one).view(-1, 1, 1) for one in wanted.images.normalisation)
    places = [number * len(source) // count for number in range(count)]
    for start in range(0, count, BATCH):
        some = places[start : start + BATCH]
        seen = [torch.tensor(judged_view(source.read(one), wanted.images)) for one in some]
        pixels = torch.stack(seen).permute(0, 3, 1, 2).float() / 255
        yield (pixels - mean) / deviation, torch.from_numpy(source.labels[some])


if __name__ == "__main__":
    main()
