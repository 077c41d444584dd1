"""Channels of activations that are far larger than the others, which make them hard to round.

Dettmers et al., "LLM.int8()", arXiv 2208.07339, section 4; SmoothQuant, arXiv 2211.10438.

A scale for a whole token is set by its largest channel, so that the others keep few levels: with a
channel 50 times the median, an ordinary one has 127 / 50, less than three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.checkpoints.layers import is_linear
from ridgeline.records.compression import ChannelOutliers

OUTLIER = 10.0
"""Times the median of a layer's channels, from which on a channel is one."""
Largest = dict[str, Tensor]
"""By layer, the largest magnitude of each input channel, [in]."""


def outliers(largest: Largest) -> tuple[ChannelOutliers, ...]:
    """The outliers of the layers that have some, the worst first."""
    found = [_of_layer(layer, most.float()) for layer, most in largest.items()]
    return tuple(sorted((one for one in found if one.channels), key=lambda one: one.levels_left))


def _of_layer(layer: str, most: Tensor) -> ChannelOutliers:
    median = float(most.quantile(0.5).clamp(min=1e-12))
    order = most.argsort(descending=True, stable=True).tolist()
    ratios = (most / median).tolist()
    found = [channel for channel in order if ratios[channel] >= OUTLIER]
    return ChannelOutliers(
        layer=layer,
        channels=tuple(found),
        ratios=tuple(ratios[channel] for channel in found),
        levels_left=127.0 * median / max(float(most.max()), median),
    )


@contextmanager
def watched_channels(model: nn.Module) -> Iterator[Largest]:
    """Within, what flows into the linear layers of a model of transformers is looked at.

    Not into the head, which schemes leave alone, nor into experts that are one tensor.
    """
    largest: Largest = {}
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    handles = [
        module.register_forward_pre_hook(_noting(name, largest))
        for name, module in model.named_modules()
        if is_linear(module) and module is not head
    ]
    try:
        yield largest
    finally:
        for handle in handles:
            handle.remove()


def _noting(name: str, largest: Largest) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def note(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        rows = args[0].detach().reshape(-1, args[0].shape[-1])
        if len(rows):
            low, high = torch.aminmax(rows, dim=0)
            most = torch.maximum(high, -low)
            largest[name] = torch.maximum(largest.get(name, most), most)

    return note
