"""Preprocessing gives what the preprocessors of transformers give on the same pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ridgeline.image_files.preprocess import read_preprocess


@pytest.mark.parametrize("size", [(40, 60), (61, 45), (300, 200)], ids=str)
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ViTImageProcessor", {"size": {"height": 48, "width": 40}, "resample": 2}),
        (
            "BitImageProcessor",
            {"size": {"shortest_edge": 56}, "crop_size": {"height": 48, "width": 48}},
        ),
        ("ConvNextImageProcessor", {"size": {"shortest_edge": 64}, "crop_pct": 0.875}),
    ],
)
def test_pixels_equal_those_of_transformers(
    name: str, settings: dict[str, Any], size: tuple[int, int], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    try:
        theirs = getattr(transformers, f"{name}Pil", None) or getattr(transformers, name)
        processor = theirs(**settings)
    except ImportError as error:
        pytest.skip(str(error))
    processor.save_pretrained(tmp_path)
    pixels = np.random.default_rng(1).integers(0, 256, (*size, 3), dtype=np.uint8)
    wanted = processor(Image.fromarray(pixels), return_tensors="np")["pixel_values"][0]

    ours = read_preprocess(tmp_path)

    assert ours is not None
    assert ours(pixels).shape == wanted.shape
    assert np.abs(ours(pixels) - wanted).max() < 0.05  # one of 255 levels is 0.017
