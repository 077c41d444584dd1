"""What a model sees of a picture: by seed, epoch and place alone, and as transformers sees it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.image_files.preprocess import Preprocess
from ridgeline.records.image_recipe import RecipeImages
from ridgeline.train.images.views import (
    judged_view,
    random_part,
    resized_side,
    trained_view,
)

SIDES = st.integers(8, 70)


def picture(height: int, width: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@settings(max_examples=40, deadline=None)
@given(
    height=SIDES,
    width=SIDES,
    crop=st.sampled_from(["random-resized", "padded", "centre"]),
    channels=st.sampled_from([1, 3]),
    place=st.integers(0, 10**9),
    epoch=st.integers(0, 500),
)
def test_a_view_has_the_size_that_was_asked_for_and_is_the_same_each_time(
    height: int, width: int, crop: Any, channels: Any, place: int, epoch: int
) -> None:
    wanted = RecipeImages(path="x", size=16, crop=crop, channels=channels)
    pixels = picture(height, width)
    seen = trained_view(pixels, wanted, 3, epoch, place)
    assert seen.shape == (16, 16, channels)
    assert seen.dtype == np.uint8
    assert np.array_equal(seen, trained_view(pixels, wanted, 3, epoch, place))


def test_other_epochs_places_and_seeds_see_other_parts() -> None:
    wanted = RecipeImages(path="x", size=16)
    pixels = picture(64, 48)
    seen = [
        trained_view(pixels, wanted, *key).tobytes()
        for key in ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0))
    ]
    assert len(set(seen)) == 4


@settings(max_examples=100, deadline=None)
@given(width=st.integers(1, 300), height=st.integers(1, 300), seed=st.integers(0, 2**32))
def test_a_random_part_lies_inside_and_is_not_empty(width: int, height: int, seed: int) -> None:
    wanted = RecipeImages(path="x", size=16)
    chance = np.random.default_rng(seed)
    left, top, right, bottom = random_part(width, height, wanted, chance)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


def test_random_parts_have_areas_and_shapes_between_their_limits() -> None:
    wanted = RecipeImages(path="x", size=16, area=(0.25, 0.5), shape=(0.8, 1.25))
    chance = np.random.default_rng(0)
    parts = [random_part(400, 400, wanted, chance) for _ in range(400)]
    areas = [(r - a) * (b - t) / 160000 for a, t, r, b in parts]
    shapes = [(r - a) / (b - t) for a, t, r, b in parts]
    assert min(areas) == pytest.approx(0.25, abs=0.01)
    assert max(areas) == pytest.approx(0.5, abs=0.01)
    assert min(shapes) == pytest.approx(0.8, abs=0.02)
    assert max(shapes) == pytest.approx(1.25, abs=0.02)


@pytest.mark.parametrize(("height", "width"), [(48, 64), (63, 41), (32, 32), (20, 30)])
@pytest.mark.parametrize("share", [0.875, 1.0])
def test_validation_sees_what_the_saved_preprocessor_makes(
    height: int, width: int, share: float
) -> None:
    wanted = RecipeImages(path="x", size=32, centre_share=share)
    mean, deviation = wanted.normalisation
    saved = Preprocess(resize=resized_side(wanted), crop=(32, 32), mean=mean, std=deviation)
    pixels = picture(height, width)
    normal = (judged_view(pixels, wanted) / 255 - mean) / deviation
    np.testing.assert_allclose(saved(pixels), normal.transpose(2, 0, 1), atol=1e-5)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"area": (0.0, 1.0)}, "images.area"),
        ({"shape": (2.0, 1.0)}, "images.shape"),
        ({"mean": (0.5,)}, "images.mean has 1 numbers"),
        ({"epochs": 1.0, "images": 5.0}, "keep one"),
        ({"size": 0}, "images.size is 0"),
        ({"label_smoothing": 1.0}, "images.label_smoothing"),
        ({"centre_share": 1.5}, "images.centre_share"),
    ],
)
def test_views_that_cannot_be_are_refused_by_their_key(values: Any, named: str) -> None:
    wanted = RecipeImages(**({"path": "x", "size": 16} | values))
    with pytest.raises(InputError, match=named):
        wanted.check_for_images(None)  # type: ignore[arg-type]
