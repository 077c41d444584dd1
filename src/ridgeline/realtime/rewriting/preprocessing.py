"""What a Python preprocessing step does to images, found from what it did to some.

Crop, average or pick pixels, scale and shift each channel, channels to the front: that is what most
preprocessing of images comes to, however it is written. The crop and the reduction are looked for
by trying all that fit the two sizes, the scale and shift of each channel by least squares; only a
step that is met to rounding on every image counts as understood.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Images = NDArray[Any]
_LARGEST_REDUCTION = 8
_TRIED_PIXELS = 4096
_MET = 1e-5
"""Largest error that counts as rounding, as a share of the largest value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRecipe:
    """Images [rows, height, width, channels] to [rows, channels, height / s, width / s] float32."""

    top: int
    left: int
    reduction: int
    """Side of the square of pixels that becomes one."""
    how: Literal["mean", "first"]
    scale: tuple[float, ...]
    shift: tuple[float, ...]
    height: int
    """The height of what comes out; `width` likewise."""
    width: int
    as_array: bool
    """The step returns a numpy array and no tensor."""

    def __call__(self, images: Any) -> Any:
        """The step on all images at once."""
        import torch

        stacked = images if isinstance(images, np.ndarray) else np.stack(list(images))
        s = self.reduction
        cut = stacked[
            :, self.top : self.top + s * self.height, self.left : self.left + s * self.width
        ]
        whole = torch.from_numpy(np.ascontiguousarray(cut)).permute(0, 3, 1, 2)
        reduced = self._reduced(whole)
        shape = (1, -1, 1, 1)
        scale, shift = torch.tensor(self.scale), torch.tensor(self.shift)
        made = torch.addcmul(shift.reshape(shape), reduced, scale.reshape(shape)).contiguous()
        return made.numpy() if self.as_array else made

    def _reduced(self, images: Tensor) -> Tensor:
        from torch.nn.functional import avg_pool2d

        s = self.reduction
        if s == 1 or self.how == "first":
            return images[:, :, ::s, ::s].float()
        return avg_pool2d(images.float(), s)


def understand(samples: Sequence[tuple[Any, Any]]) -> ImageRecipe | None:
    """What a step does, from some of its inputs with their outputs; None: something else."""
    pairs = [(_images(given), _planes(made)) for given, made in samples]
    given, made = pairs[0] if pairs else (None, None)
    if given is None or made is None or len(given) != len(made) or given.shape[3] != made.shape[1]:
        return None
    as_array = isinstance(samples[0][1], np.ndarray)
    for recipe in _recipes(given, made, as_array=as_array):
        if all(_meets(recipe, images, planes) for images, planes in pairs):
            return recipe
    return None


def _images(value: Any) -> Images | None:
    """Images of one size as an array [rows, height, width, channels]."""
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], np.ndarray):
        if len({one.shape for one in value}) != 1:
            return None
        value = np.stack(value)
    fits = isinstance(value, np.ndarray) and value.ndim == 4 and value.shape[3] <= 4
    return value if fits and value.dtype in (np.uint8, np.float32) else None


def _planes(value: Any) -> Images | None:
    found = value.detach().cpu().numpy() if hasattr(value, "detach") else value
    fits = isinstance(found, np.ndarray) and found.ndim == 4 and found.dtype == np.float32
    return found if fits else None


def _recipes(given: Images, made: Images, *, as_array: bool) -> list[ImageRecipe]:
    """Every crop and reduction that leads from one size to the other and fits one image."""
    (height, width), found = made.shape[2:], []
    for s in range(1, _LARGEST_REDUCTION + 1):
        if s * height > given.shape[1] or s * width > given.shape[2]:
            break
        for top in range(given.shape[1] - s * height + 1):
            for left in {0, (given.shape[2] - s * width) // 2, given.shape[2] - s * width}:
                for how in ("mean", "first") if s > 1 else ("first",):
                    fitted = _fit(given[0], made[0], top, left, s, how)
                    if fitted is not None:
                        found.append(
                            ImageRecipe(
                                top=top, left=left, reduction=s, how=how, scale=fitted[0],
                                shift=fitted[1], height=height, width=width, as_array=as_array,
                            )
                        )  # fmt: skip
    return found


def _fit(
    image: Images, planes: Images, top: int, left: int, s: int, how: str
) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Scale and shift of each channel, on some of the rows; None: no such fit."""
    height, width = planes.shape[1:]
    rows = np.unique(np.linspace(0, height - 1, max(2, _TRIED_PIXELS // width)).astype(int))
    cut = image[top : top + s * height, left : left + s * width].astype(np.float64)
    blocks = cut.reshape(height, s, width, s, -1)[rows]
    reduced = blocks.mean(axis=(1, 3)) if how == "mean" else blocks[:, 0, :, 0]
    scales, shifts = [], []
    for channel, plane in enumerate(planes[:, rows].astype(np.float64)):
        x, y = reduced[..., channel].ravel(), plane.ravel()
        if np.ptp(x) == 0:
            return None
        scale, shift = np.polyfit(x, y, 1)
        if np.abs(scale * x + shift - y).max() > _MET * max(np.abs(y).max(), 1e-12):
            return None
        scales.append(float(scale))
        shifts.append(float(shift))
    return tuple(scales), tuple(shifts)


def _meets(recipe: ImageRecipe, given: Images | None, made: Images | None) -> bool:
    if given is None or made is None:
        return False
    found = _planes(recipe(given))
    if found is None or found.shape != made.shape:
        return False
    return bool(np.abs(found - made).max() <= _MET * max(float(np.abs(made).max()), 1e-12))
