"""A ResNet that has learnt scikit-learn's digits, as a directory, as a script, and its images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional
from transformers import AutoModelForImageClassification, ResNetConfig

SIDE = 32
SCRIPT = """
import numpy as np
import torch
from pathlib import Path
from transformers import AutoModelForImageClassification

class Scaled(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x).logits

def network():
    folder = Path(__file__).parent / "model"
    return Scaled(AutoModelForImageClassification.from_pretrained(folder))

def preprocess(image):
    pixels = np.asarray(image.resize((32, 32), 2), dtype=np.float32) / 255
    return pixels.transpose(2, 0, 1) * 2 - 1

def broken():
    raise RuntimeError("weights are gone")

def no_module():
    return 7
"""


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`model/`, `script.py`, `calibration/` and `held/` with a folder for each class."""
    datasets = pytest.importorskip("sklearn.datasets")
    folder = tmp_path_factory.mktemp("digits")
    found = datasets.load_digits()
    pixels = (found.images * (255 / 16)).astype(np.uint8)
    order = np.random.default_rng(0).permutation(len(pixels))
    parts = {"train": order[:1000], "calibration": order[1000:1200], "held": order[1200:]}
    for name in ("calibration", "held"):
        for place in parts[name]:
            own = folder / name / str(found.target[place])
            own.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[place]).save(own / f"{place:04d}.png")
    torch.manual_seed(0)
    config = ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32, 64],
        depths=[1, 1, 1],
        layer_type="basic",
        num_labels=10,
    )
    model = AutoModelForImageClassification.from_config(config)
    images = torch.stack([_ready(pixels[place]) for place in parts["train"]])
    _train(model, images, torch.from_numpy(found.target[parts["train"]]))
    model.save_pretrained(folder / "model")
    (folder / "script.py").write_text(SCRIPT)
    (folder / "model" / "preprocessor_config.json").write_text(
        '{"size": {"height": 32, "width": 32}, "resample": 2, "image_mean": [0.5, 0.5, 0.5],'
        ' "image_std": [0.5, 0.5, 0.5]}'
    )
    return folder


def _ready(pixels: np.ndarray) -> torch.Tensor:
    wide = Image.fromarray(pixels).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.asarray(wide, dtype=np.float32) / 255).permute(2, 0, 1) * 2 - 1


def _train(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(4):
        generator = torch.Generator().manual_seed(epoch)
        for rows in torch.randperm(len(labels), generator=generator).split(50):
            optimizer.zero_grad()
            functional.cross_entropy(model(images[rows]).logits, labels[rows]).backward()
            optimizer.step()
    model.eval()
