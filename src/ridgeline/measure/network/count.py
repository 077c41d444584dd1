"""Count a module by one forward pass of one image on the meta device, without arithmetic.

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

from ridgeline.errors import InputError, NotCounted, in_words
from ridgeline.measure.network.example import ExampleInputs, fitted, image_example
from ridgeline.measure.network.recorder import FusedFunctions, Recorder, following_layers
from ridgeline.measure.network.without_cuda import cuda_means
from ridgeline.models.vision.network import VisionNetwork, VisionOperator


def count_module(
    module: torch.nn.Module,
    image_size: tuple[int, int],
    *,
    name: str = "",
    channels: int = 3,
    inputs: ExampleInputs | None = None,
) -> VisionNetwork:
    """The operators of a module's forward pass of one image of `image_size` (height, width).

    Runs where the module's parameters are; on the meta device nothing is computed, elsewhere an
    image of zeros is. The module is put into evaluation mode and left so. Where shapes depend on
    data once every layer has run (the non-maximum suppression of a detector), counting ends there.
    With `inputs` the module is called with those, and `image_size` is only written down.

    >>> layer = torch.nn.Conv2d(3, 64, 7, stride=2, padding=3, device="meta")
    >>> count_module(layer, (224, 224)).macs == 7 * 7 * 3 * 64 * 112 * 112
    True
    """
    return VisionNetwork(
        name=name or type(module).__name__,
        image_size=image_size,
        operators=tuple(
            merge_equal(
                record_operators(module, image_size, name=name, channels=channels, inputs=inputs)
            )
        ),
        parameters=sum(one.numel() for one in module.parameters()),
    )


def record_operators(
    module: torch.nn.Module,
    image_size: tuple[int, int],
    *,
    name: str = "",
    channels: int = 3,
    inputs: ExampleInputs | None = None,
) -> list[VisionOperator]:
    """Every operator of one forward pass in its order, equal ones apart."""
    module.eval()
    name = name or type(module).__name__
    example = fitted(inputs or image_example(image_size, channels), module, name).beside(module)
    device = next((one.device for one in module.parameters()), torch.device("meta"))
    recorder = Recorder(example.tensors, lambda: not _unvisited(module, recorder.visited))
    with (
        torch.no_grad(),
        without_fast_path(),
        cuda_means(device),
        following_layers(module, recorder),
        FusedFunctions(recorder),
        recorder,
    ):
        try:
            example.given_to(module)
        except Exception as error:  # whatever a user's module raises
            waiting = _unvisited(module, recorder.visited)
            if recorder.stopped_at and not waiting:
                return recorder.operators
            if recorder.stopped_at:
                raise NotCounted(
                    f"{name}: how often {waiting[0]} runs waits for what {recorder.last_path()}"
                    " finds in the image, so that it cannot be counted"
                ) from error
            height, width = image_size
            shown = f"an image of {height}x{width}" if inputs is None else inputs.said()
            raise InputError(
                f"{name} failed on {shown} after {recorder.last_path()}: {in_words(error)}"
            ) from error
    return recorder.operators


def _unvisited(module: torch.nn.Module, visited: set[str]) -> list[str]:
    """Layers with parameters of their own that have not run."""
    return [
        path
        for path, layer in module.named_modules()
        if path not in visited
        and not isinstance(layer, torch.nn.ParameterList | torch.nn.ParameterDict)
        and next(layer.parameters(recurse=False), None) is not None
    ]


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
