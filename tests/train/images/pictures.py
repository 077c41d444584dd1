"""scikit-learn's digits in every form that a recipe takes, and recipes of seconds on them."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

from ridgeline.records.recipe import Recipe

CONFIG = {
    "model_type": "resnet",
    "layer_type": "basic",
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 1],
    "num_channels": 1,
    "num_labels": 10,
}
BASE: dict[str, dict[str, Any]] = {
    "images": {
        "size": 12,
        "channels": 1,
        "crop": "padded",
        "padding": 2,
        "flip": False,
        "centre_share": 1.0,
        "workers": 0,
    },
    "layout": {"micro_batch": 8, "global_batch": 16, "precision": "fp32", "compiled": False},
    "optimizer": {
        "name": "sgd",
        "momentum": 0.9,
        "learning_rate": 0.05,
        "final_learning_rate": 0.0,
        "warmup_steps": 2,
        "weight_decay": 5e-4,
    },
    "run": {"steps": 6, "log_every": 1},
    "checkpoint": {"every_steps": 100},
}


def digits(count: int = 1797) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pixels [n, 8, 8] and labels [n]."""
    found = load_digits()
    pixels = (found.images * 255 / 16).round().astype(np.uint8)
    return pixels[:count], found.target[:count].astype(np.int64)


def as_arrays(folder: Path, count: int = 1797) -> Path:
    """Two arrays, as `examples/recipes/digits_images.py` writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels, labels = digits(count)
    np.save(folder / "images.npy", pixels)
    np.save(folder / "labels.npy", labels)
    return folder


def as_folders(folder: Path, count: int) -> Path:
    """A folder for each class, of PNG files named after their place."""
    for place, (pixels, label) in enumerate(zip(*digits(count), strict=True)):
        path = folder / str(label) / f"{place:05}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return folder


def as_shards(folder: Path, count: int, shards: int = 2) -> Path:
    """WebDataset: every so many images a .tar."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels, labels = digits(count)
    for number in range(shards):
        with tarfile.open(folder / f"shard-{number:03}.tar", "w") as opened:
            for place in range(number, count, shards):
                picture = io.BytesIO()
                Image.fromarray(pixels[place]).save(picture, format="png")
                _add(opened, f"{place:05}.png", picture.getvalue())
                _add(opened, f"{place:05}.cls", str(labels[place]).encode())
    return folder / f"shard-{{000..{shards - 1:03}}}.tar"


def _add(opened: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    opened.addfile(member, io.BytesIO(content))


def small_recipe(folder: Path, path: Path, **tables: dict[str, Any]) -> Recipe:
    """Six steps of sixteen images; tables override keys."""
    config = folder / "resnet"
    config.mkdir(parents=True, exist_ok=True)
    (config / "config.json").write_bytes(msgspec.json.encode(CONFIG))
    base = {name: dict(table) for name, table in BASE.items()}
    base["model"] = {"config": str(config)}
    base["images"]["path"] = str(path)
    for table, values in tables.items():
        base[table] = base.get(table, {}) | values
    return msgspec.convert(base, type=Recipe)
