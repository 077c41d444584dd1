"""A network that 4 bits hurt, trained with rounded weights and saved in 4 bits, by the commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.train.images.pictures import digits

from ridgeline.cli.main import run

NET = """
from torch import nn

def narrow(inp, out, stride=1):
    return nn.Sequential(
        nn.Conv2d(inp, inp, 3, stride, 1, groups=inp, bias=False), nn.BatchNorm2d(inp), nn.ReLU6(),
        nn.Conv2d(inp, out, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU6(),
    )

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(),
            narrow(8, 16, 2), narrow(16, 16), narrow(16, 24, 2), narrow(24, 24),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10),
        )
"""
RECIPE = """
[model]
script = "{net}:Net"
{start}
[images]
path = "{folder}"
size = 8
classes = 10
channels = 1
crop = "padded"
padding = 1
flip = false
centre_share = 1.0
workers = 0
[layout]
micro_batch = 32
global_batch = 32
precision = "fp32"
compiled = false
[optimizer]
name = "sgd"
momentum = 0.9
learning_rate = {rate}
final_learning_rate = 0.0
warmup_steps = 0
weight_decay = 1e-4
[run]
steps = {steps}
[checkpoint]
keep = 0
"""
SCHEME = "w4a8-int8-rtn"
ROUNDED = f'[quantisation]\nscheme = "{SCHEME}"\n'
TRAINED = 1200


def trained(folder: Path, name: str, *, rate: float, steps: int, after: str = "") -> Path:
    """The weights that `ridgeline train` leaves, begun from the run that is named."""
    start = f'checkpoint = "{folder / after / "model"}"' if after else ""
    text = RECIPE.format(
        net=folder / "net.py", folder=folder / "digits", start=start, rate=rate, steps=steps
    )
    recipe = folder / f"{name}.toml"
    recipe.write_text(text + (ROUNDED if after else ""))
    assert run(["train", str(recipe), "--out", str(folder / name)]) == 0
    return folder / name / "model" / "model.safetensors"


def accuracies(folder: Path, weights: Path) -> tuple[float, float]:
    """Top-1 of these weights on other digits: as they are, and rounded by `ridgeline compress`."""
    out = folder / f"{weights.parents[1].name}-rounded"
    images = ["--calibration", folder / "seen.safetensors", "--images", folder / "new.safetensors"]
    words = ["compress", f"{folder / 'net.py'}:Net", "--checkpoint", weights, "--scheme", SCHEME]
    assert run([str(one) for one in [*words, *images, "--no-speed", "--out", out]]) == 0
    given, rounded = json.loads((out / "ledger.json").read_text())["rows"]
    return given["quality"]["accuracy"], rounded["quality"]["accuracy"]


@pytest.mark.slow
def test_training_with_rounding_wins_back_half_of_what_4_bits_cost(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    pixels, labels = digits()
    for name, part in (("seen", slice(TRAINED)), ("new", slice(TRAINED, None))):
        values = (pixels[part, None].astype(np.float32) / 255 - 0.5) / 0.5
        save_file(
            {"pixel_values": values, "labels": labels[part]}, tmp_path / f"{name}.safetensors"
        )
    (tmp_path / "digits").mkdir()
    np.save(tmp_path / "digits" / "images.npy", pixels[:TRAINED])
    np.save(tmp_path / "digits" / "labels.npy", labels[:TRAINED])
    exact, after = accuracies(tmp_path, trained(tmp_path, "floats", rate=0.1, steps=300))
    assert exact - after > 0.02
    _, found = accuracies(
        tmp_path, trained(tmp_path, "rounded", rate=0.02, steps=150, after="floats")
    )
    assert found - after >= 0.5 * (exact - after)
