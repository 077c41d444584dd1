"""The colours of pictures, as readers of every kind of colour vision see them."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from ridgeline.report.plots import LOOKS

Vector = NDArray[np.float64]
SIGHTS = {
    "all cones": np.eye(3),
    "no long cones": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
         [-0.003882, -0.048116, 1.051998]]
    ),
    "no middle cones": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
         [-0.011820, 0.042940, 0.968881]]
    ),
    "no short cones": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
         [0.004733, 0.691367, 0.303900]]
    ),
}  # fmt: skip
"""Sight → its matrix on linear RGB, at full severity (Machado, Oliveira and Fernandes, 2009)."""
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
     [0.0193339, 0.1191920, 0.9503041]]
)  # fmt: skip
WHITE = np.array([0.95047, 1.0, 1.08883])
APART = 9.0
"""CIE 1976 difference: 2.3 is just noticed (Mahy, Van Eycken and Oosterlinck, 1994)."""


def linear(color: str) -> Vector:
    parts = np.array([int(color[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb: Vector) -> Vector:
    ratio = TO_XYZ @ np.clip(rgb, 0, 1) / WHITE
    x, y, z = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def schemes() -> dict[str, dict[str, str]]:
    """Colours of terms on light and on dark pages, by variable."""
    light, _, dark = (
        files("ridgeline.report")
        .joinpath("page.css")
        .read_text()
        .partition("@media (prefers-color")
    )
    return {
        name: dict(re.findall(r"(--term-\d+): (#[0-9a-f]{6});", text))
        for name, text in (("light", light), ("dark", dark))
    }


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_two_terms_of_a_picture_look_alike(scheme: str, sight: str) -> None:
    colors = schemes()[scheme]
    assert set(colors) == {one.color for one in LOOKS}
    seen = {name: lab(SIGHTS[sight] @ linear(color)) for name, color in colors.items()}
    alike = {
        (first, second): round(float(apart), 1)
        for first, second in combinations(seen, 2)
        if (apart := np.linalg.norm(seen[first] - seen[second])) < APART
    }
    assert alike == {}
