"""A module computed on some tiles of its input only; the rest of its answer is the last one.

For modules that look around each place and no further: convolutions, poolings. Tiles of the input
are cut out with a margin, computed as one batch, and their middles written into the last answer.
What lies further away than the margin is not seen: the answer is bounded, not equal, unless the
margin covers the receptive field. (Blocks gathered, computed dense and scattered: Ren et al.,
"SBNet: Sparse blocks network for fast inference", CVPR 2018; what changed since the last frame:
Cavigelli et al., "CBinfer", ICDSC 2017.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ridgeline.realtime.rewriting.layers import Inner
from ridgeline.runtimes.capture.structure import Structure, UnknownStructure, flatten, unflatten

if TYPE_CHECKING:
    from torch import Tensor

Mask = Callable[["Tensor"], "Tensor"]
"""Images [rows, channels, height, width] → bool [rows, tiles down, tiles across]."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """How an image is cut, in pixels of the module's input."""

    tile: int = 32
    margin: int = 16
    most_share: float = 0.6
    """Above this share of tiles the whole image is computed."""


class TileLayer:
    """A layer that computes the tiles which a mask names.

    Args:
        mask: Where to compute; None: where the input changed since it was last computed.
        tiling: The size of tiles and margins.
        change: Largest difference of a pixel that counts as none, as a share of the input's
            spread; only without a mask.
    """

    def __init__(
        self, mask: Mask | None = None, tiling: Tiling | None = None, change: float = 0.05
    ) -> None:
        self._mask, self._tiling, self._change = mask, tiling or Tiling(), change
        self._input: Tensor | None = None
        self._answer: list[Tensor] = []
        self._structure: Structure = {}

    def __call__(self, inner: Inner, *args: Any, **kwargs: Any) -> Any:
        """The module's answer, computed anew where the mask says so."""
        image = args[0] if len(args) == 1 and not kwargs else None
        if image is None or not _is_image(image, self._tiling.tile):
            return inner(*args, **kwargs)
        known = self._input
        if known is None or known.shape != image.shape:
            return self._whole(inner, image)
        chosen = self._mask(image) if self._mask is not None else self._changed(image, known)
        if float(chosen.float().mean()) > self._tiling.most_share:
            return self._whole(inner, image)
        if bool(chosen.any()):
            self._some(inner, image, known, chosen)
        return unflatten(self._structure, [one.clone() for one in self._answer])

    def _whole(self, inner: Inner, image: Tensor) -> Any:
        answer = inner(image)
        try:
            tensors, self._structure = flatten(answer)
        except UnknownStructure:
            return answer
        if all(_fits(image, one, self._tiling) for one in tensors):
            self._input, self._answer = image.detach().clone(), [one.clone() for one in tensors]
        return answer

    def _changed(self, image: Tensor, known: Tensor) -> Tensor:
        return changed_tiles(known, image, self._tiling.tile, self._change)

    def _some(self, inner: Inner, image: Tensor, known: Tensor, chosen: Tensor) -> None:
        from torch.nn.functional import pad

        tile, margin = self._tiling.tile, self._tiling.margin
        wide = pad(image, [margin] * 4)
        size = tile + 2 * margin
        places = chosen.nonzero().tolist()
        import torch

        cut = torch.stack(
            [
                wide[row, :, down * tile : down * tile + size, across * tile : across * tile + size]
                for row, down, across in places
            ]
        )
        tensors, _ = flatten(inner(cut))
        for whole, parts in zip(self._answer, tensors, strict=True):
            stride = image.shape[-1] // whole.shape[-1]
            side, edge = tile // stride, margin // stride
            for part, (row, down, across) in zip(parts, places, strict=True):
                here = (
                    slice(down * side, (down + 1) * side),
                    slice(across * side, (across + 1) * side),
                )
                whole[(row, slice(None), *here)] = part[:, edge : edge + side, edge : edge + side]
        for row, down, across in places:
            here = (
                slice(down * tile, (down + 1) * tile),
                slice(across * tile, (across + 1) * tile),
            )
            known[(row, slice(None), *here)] = image[(row, slice(None), *here)]


def changed_tiles(before: Tensor, after: Tensor, tile: int, change: float) -> Tensor:
    """Which tiles differ by more than a share of the spread of all values.

    Images are [rows, channels, height, width], the answer is bool [rows, down, across]; a tile at
    the border may be smaller.
    """
    from torch.nn.functional import max_pool2d

    spread = (after.amax() - after.amin()).clamp_min(1e-12)
    difference = (after - before).abs().amax(dim=1, keepdim=True)
    return (max_pool2d(difference, tile, ceil_mode=True) > change * spread).squeeze(1)


def _is_image(value: Any, tile: int) -> bool:
    import torch

    shaped = isinstance(value, torch.Tensor) and value.dim() == 4 and value.is_floating_point()
    return shaped and value.shape[-1] % tile == 0 and value.shape[-2] % tile == 0


def _fits(image: Tensor, answer: Tensor, tiling: Tiling) -> bool:
    """Whether an answer is a map whose cells are whole shares of a tile and of the margin."""
    if answer.dim() != 4 or len(answer) != len(image):
        return False
    down, across = image.shape[-2] / answer.shape[-2], image.shape[-1] / answer.shape[-1]
    whole = down == across and down == int(down) >= 1
    return whole and tiling.tile % int(down) == 0 and tiling.margin % int(down) == 0
