"""What a tower makes of images: computed once for each distinct one, kept while there is room.

Shapes: K placeholders of an image.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ridgeline.errors import InputError
from ridgeline.serve.messages import ImageArray, PromptImage

KEPT_BYTES = 256 * 2**20
"""Features that are kept for images that come again, such as those of a conversation."""


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """The features of an image, and where they belong in a sequence."""

    positions: NDArray[np.int64]
    """Positions of the placeholders in order, [K]."""
    features: Tensor
    """What takes the place of their embeddings, [K, hidden]."""
    grid: tuple[int, int] | None = None
    """Rows and columns of the placeholders, where positions have three axes (`axes.py`)."""

    def between(self, start: int, stop: int) -> tuple[NDArray[np.int64], Tensor]:
        """Positions and features of the placeholders in [start, stop)."""
        first, last = np.searchsorted(self.positions, (start, stop))
        return self.positions[first:last], self.features[first:last]


class VisionTower:
    """The tower and projector of a model, transformers' own modules."""

    def __init__(
        self,
        module: nn.Module,
        dtype: torch.dtype,
        device: torch.device,
        merged: int | None = None,
    ) -> None:
        """Take over what a model sees with.

        Args:
            module: A model of transformers whose language model was taken out.
            dtype: In which it computes.
            device: Where it computes.
            merged: Patches along each side that become one feature, where the language model has
                positions in three axes; None: its positions are plain.
        """
        self.module = module
        self._merged = merged
        self._dtype = dtype
        self.device = device

    @torch.inference_mode()
    def features(self, arrays: tuple[ImageArray, ...]) -> Tensor:
        """[K, hidden] of one image."""
        inputs = {one.name: self.tensor(one) for one in arrays}
        found = self.module.get_image_features(**inputs, return_dict=True)  # type: ignore[operator]
        features = found.pooler_output
        if isinstance(features, list | tuple):
            features = torch.cat(list(features))
        result: Tensor = features.reshape(-1, features.shape[-1]).to(self._dtype)
        return result

    def grid(self, arrays: tuple[ImageArray, ...]) -> tuple[int, int] | None:
        """Rows and columns of an image's features, where the language model is told them."""
        if self._merged is None:
            return None
        (found,) = (one for one in arrays if one.name == "image_grid_thw")
        (_, height, width) = self.tensor(found)[0].tolist()
        return height // self._merged, width // self._merged

    def tensor(self, array: ImageArray) -> Tensor:
        """An array as the tower takes it."""
        values = np.frombuffer(array.data, dtype=array.dtype).reshape(array.shape)
        tensor = torch.from_numpy(values.copy()).to(self.device)
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor

    def weight_bytes(self) -> int:
        """The size of its weights."""
        return sum(one.nbytes for one in (*self.module.parameters(), *self.module.buffers()))


class ImageFeatures:
    """Features by the hash of their image; the least recently used go."""

    def __init__(self, tower: VisionTower, most_bytes: int = KEPT_BYTES) -> None:
        self._tower = tower
        self._most_bytes = most_bytes
        self._kept: OrderedDict[bytes, Tensor] = OrderedDict()
        self._bytes = 0

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._kept

    def placed(self, image: PromptImage) -> PlacedImage:
        """The features of an image at its places, computed where they are not kept.

        Raises:
            InputError: The tower makes more or fewer of it than there are placeholders.
        """
        positions = np.concatenate([np.arange(start, stop) for start, stop in image.places])
        features = self._kept.get(image.digest)
        if features is None:
            features = self._tower.features(image.arrays)
            self._keep(image.digest, features)
        else:
            self._kept.move_to_end(image.digest)
        if len(features) != len(positions):
            raise InputError(
                f"an image has {len(features)} features and {len(positions)} placeholders; the"
                " model's processor does not fit its vision tower"
            )
        return PlacedImage(positions, features, self._tower.grid(image.arrays))

    def _keep(self, digest: bytes, features: Tensor) -> None:
        self._kept[digest] = features
        self._bytes += features.nbytes
        while self._bytes > self._most_bytes:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.nbytes
