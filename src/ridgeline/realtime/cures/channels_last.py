"""Convolutions on channels-last tensors: weights converted once, images at the module's door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ridgeline.realtime.cures import CureCard, CureStage, Fit, named, option_text
from ridgeline.realtime.results import ROUNDING
from ridgeline.realtime.rewriting.layers import Inner, Rank, lay
from ridgeline.realtime.rewriting.modules import find_modules
from ridgeline.records.ledger import Options

if TYPE_CHECKING:
    from ridgeline.realtime.pipeline import Pipeline
    from ridgeline.realtime.rewriting.observe import ObservedPipeline

CARD = CureCard(
    name="channels-last",
    title="Channels-last memory format",
    costs="Code that calls .view() on activations fails; it must call .reshape().",
    source="PyTorch tutorial, Channels Last Memory Format in PyTorch",
    stage=CureStage.LAYOUT,
    freedom=ROUNDING,
)


def applies(pipeline: Pipeline, seen: ObservedPipeline) -> Fit:
    """Modules with convolutions keep their weights channels-first."""
    found = [
        one for one in seen.largest(Rank.LAYOUT) if one.has_convolutions and not one.channels_last
    ]
    if not found:
        return Fit(reason="no module with convolutions is channels-first")
    return Fit(({"modules": named(found)},))


def apply(pipeline: Pipeline, options: Options) -> Pipeline:
    """Convert the weights in place, and each image as it comes."""
    import torch

    for module in find_modules(pipeline, option_text(options, "modules")).values():
        for weight in module.parameters():
            if weight.dim() == 4:
                weight.data = weight.data.contiguous(memory_format=torch.channels_last)
        lay(module, Rank.LAYOUT, _converted)
    return pipeline


def _converted(inner: Inner, *args: Any, **kwargs: Any) -> Any:
    import torch

    images = [
        one.contiguous(memory_format=torch.channels_last)
        if isinstance(one, torch.Tensor) and one.dim() == 4
        else one
        for one in args
    ]
    return inner(*images, **kwargs)
