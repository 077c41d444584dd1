"""A compressed model as PyTorch computes it: weights as rounded, inputs rounded on their way in.

It tells what compression costs in quality; it is no faster than the model as it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from ridgeline.checkpoints.quantised import ActivationScales
from ridgeline.checkpoints.skeleton import ModelSkeleton
from ridgeline.compress import rounding
from ridgeline.compress.rounding import Grid
from ridgeline.compress.streaming.finished import Finished


def emulated(skeleton: ModelSkeleton, blocks: Iterable[Finished]) -> nn.Module:
    """The whole model in float32.

    Args:
        skeleton: Without weights.
        blocks: All that were compressed.
    """
    skeleton.load(list(skeleton.pieces))
    places = {
        piece.saved_name: (target, piece)
        for target, pieces in skeleton.pieces.items()
        for piece in pieces
    }
    for block in blocks:
        for name, tensor in block.dense.items():
            target, piece = places[name]
            piece.of(skeleton.value(target).data).copy_(tensor)
        for layer, (weight, inputs) in block.quantised.items():
            target, piece = places[f"{layer}.weight"]
            piece.of(skeleton.value(target).data).copy_(weight.dequantised())
            # transformers unpacks experts into one tensor, and leaves their inputs as they are.
            if inputs is not None and piece.expert is None:
                round_inputs(skeleton.model.get_submodule(target.removesuffix(".weight")), inputs)
    model: Any = skeleton.model
    model.tie_weights()
    assert isinstance(model, nn.Module)
    return model


def round_inputs(module: nn.Module, inputs: ActivationScales) -> Any:
    """From now on the first argument of a layer is rounded; the handle takes it back."""

    def hook(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (rounded_inputs(args[0], inputs), *args[1:])

    return module.register_forward_pre_hook(hook)


def rounded_inputs(x: Tensor, inputs: ActivationScales) -> Tensor:
    """[..., in] on the grid of the format, in the dtype of x.

    Dynamic ranges are a token's own (or a group's within it); static ones come with `inputs`.
    """
    flat = x.reshape(-1, x.shape[-1])
    if inputs.scale is not None:
        zeros = None if inputs.zero is None else inputs.zero.reshape(1, 1)
        grid = Grid(format=inputs.format, scales=inputs.scale.reshape(1, 1), zeros=zeros)
    else:
        parts = rounding.in_groups(flat, inputs.format)
        grid = rounding.grid_between(
            parts.amin(-1), parts.amax(-1), inputs.format, flat.dtype, inputs.global_scale
        )
    return rounding.rounded(flat, grid).reshape(x.shape)
