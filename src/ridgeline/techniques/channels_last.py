"""Convolutions on channels-last memory, the order in which fast kernels work.

On channels-first tensors each convolution is wrapped in two transpositions. The weights are
converted once, in place; activations follow the weights from the first convolution on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.measure.child.anatomy import parameters
from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records.edits import Edit, InsertBefore
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl

if TYPE_CHECKING:
    import torch
    from torch import nn

CARD = Card(
    name="channels-last",
    title="Channels-last memory format",
    cures=("channels-first",),
    costs="Code that calls .view() on activations fails; it must call .reshape().",
    source="PyTorch tutorial, Channels Last Memory Format in PyTorch",
    equivalence="rounding",
    stage=Stage.LAYOUT,
    breaks_with=("view size is not compatible with input tensor's size and stride",),
)

_AROUND = (
    "aten::convolution", "aten::convolution_backward", "aten::_convolution",
    "aten::mkldnn_convolution", "aten::cudnn_convolution",
    "aten::native_batch_norm", "aten::native_batch_norm_backward", "aten::cudnn_batch_norm",
    "aten::cudnn_batch_norm_backward", "aten::max_pool2d_with_indices",
    "aten::max_pool2d_with_indices_backward", "aten::_native_batch_norm_legit",
)  # fmt: skip


def applies(context: Context) -> Applicability:
    """Convolutions run on channels-first tensors."""
    models = context.profile.models
    if not any(model.has_convolutions for model in models):
        return Applicability(False, "the model has no convolutions")
    if all(model.channels_last for model in models if model.has_convolutions):
        return Applicability(False, "the weights are channels-last")
    if context.profile.habit("channels_first_convolution").calls == 0:
        return Applicability(False, "no convolution ran on channels-first tensors")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """A little on a CPU and in float32, more where half-precision tensor cores are fed."""
    half = context.profile.settings.autocast_dtype is not None
    best = 1.8 if context.device == "cuda" and half else 1.3
    return amdahl(context.operator_share(*_AROUND), 1.0, best)


def apply(points: Points, options: Options) -> Undo:
    """Convert the weights in place before the model's first call."""
    import torch

    converted: list[nn.Module] = []

    def convert(module: nn.Module) -> None:
        weights = [p for p in parameters(module) if p.dim() == 4]
        if all(w.is_contiguous(memory_format=torch.channels_last) for w in weights):
            return
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        converted.append(module)
        points.changed(CARD.name, f"{len(weights)} weights of {type(module).__name__} converted")

    points.on_model.append(convert)
    points.on_optimizer.append(_state_follows_weights)

    def undo() -> None:
        points.on_model.remove(convert)
        points.on_optimizer.remove(_state_follows_weights)
        for module in converted:
            module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]

    return undo


def _state_follows_weights(optimizer: torch.optim.Optimizer) -> None:
    """Momenta loaded from a checkpoint have the old order; fused kernels take both as flat."""
    import torch

    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            same = isinstance(value, torch.Tensor) and value.shape == parameter.shape
            if same and value.stride() != parameter.stride():
                state[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def edits(context: Context, options: Options) -> list[Edit]:
    """One line where the model is complete: before its optimizer is made, or before the loop."""
    code = "{model}.to(memory_format=torch.channels_last)"
    sites = [o.site for o in context.profile.optimizers if o.site is not None]
    if sites:
        return [InsertBefore(site=site, code=code) for site in sites]
    called = [m.forward_site for m in context.profile.models if m.has_convolutions]
    return [
        InsertBefore(site=site, code=code, outside_loops=True)
        for site in called
        if site is not None
    ]
