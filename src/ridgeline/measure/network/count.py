"""Count a module: one forward pass of one image on the meta device, without weights or arithmetic.

    with torch.device("meta"):
        module = build()
    network = count_module(module, (224, 224))

Every operator that PyTorch dispatches is seen, with the path of its layer; equal ones merge into
one with their `count`. Views cost nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from ridgeline.errors import InputError, in_words
from ridgeline.measure.network.recorder import FusedAttention, Recorder, following_layers
from ridgeline.models.vision.network import VisionNetwork, VisionOperator


def count_module(
    module: torch.nn.Module,
    image_size: tuple[int, int],
    *,
    name: str = "",
    channels: int = 3,
) -> VisionNetwork:
    """The operators of a module's forward pass of one image of `image_size` (height, width).

    Runs where the module's parameters are; on the meta device nothing is computed. The module is
    put into evaluation mode and left so.

    >>> layer = torch.nn.Conv2d(3, 64, 7, stride=2, padding=3, device="meta")
    >>> count_module(layer, (224, 224)).macs == 7 * 7 * 3 * 64 * 112 * 112
    True
    """
    module.eval()
    first = next((one for one in module.parameters() if one.is_floating_point()), None)
    device = "meta" if first is None else first.device
    dtype = torch.float32 if first is None else first.dtype
    image = torch.empty(1, channels, *image_size, device=device, dtype=dtype)
    recorder = Recorder(image)
    recorder.paths.append("")
    with (
        torch.no_grad(),
        without_fast_path(),
        following_layers(module, recorder.paths),
        FusedAttention(recorder),
        recorder,
    ):
        try:
            module(image)
        except (RuntimeError, NotImplementedError, ValueError, TypeError, AssertionError) as error:
            place = f" in {recorder.paths[-1]}" if recorder.paths[-1] else ""
            height, width = image_size
            raise InputError(
                f"{name or type(module).__name__} failed on an image of {height}x{width}{place}:"
                f" {in_words(error)}"
            ) from error
    return VisionNetwork(
        name=name or type(module).__name__,
        image_size=image_size,
        operators=tuple(merge_equal(recorder.operators)),
        parameters=sum(one.numel() for one in module.parameters()),
    )


def merge_equal(operators: Iterable[VisionOperator]) -> list[VisionOperator]:
    """Operators that differ in their name alone stand once, where the first of them runs."""
    found: dict[VisionOperator, tuple[str, int]] = {}
    for one in operators:
        key = replace(one, name="", count=1)
        name, count = found.get(key, (one.name, 0))
        found[key] = name, count + one.count
    return [replace(one, name=name, count=count) for one, (name, count) in found.items()]


@contextlib.contextmanager
def without_fast_path() -> Iterator[None]:
    """PyTorch's fused transformer layer, which computes in one operator, is off while inside."""
    backend: Any = torch.backends.mha
    before = backend.get_fastpath_enabled()
    backend.set_fastpath_enabled(False)
    try:
        yield
    finally:
        backend.set_fastpath_enabled(before)
