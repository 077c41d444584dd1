"""Replaces the linear layers of a loaded model, one at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ridgeline.checkpoints.experts import holds_experts
from ridgeline.checkpoints.layers import is_transposed, weight_of
from ridgeline.errors import InputError
from ridgeline.kernels import linear_int4, linear_int8
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.messages import MemoryRow
from ridgeline.serve.weights.experts import (
    are_layers,
    open_experts,
)
from ridgeline.serve.weights.layers import dense_layer, int4_layer, int8_layer, w8a8_layer
from ridgeline.serve.weights.linears import (
    DenseLinear,
    FrozenLinear,
    GroupedLinear,
    Int4Linear,
    PanelEmbedding,
)
from ridgeline.serve.weights.row_peaks import row_peaks
from ridgeline.serve.weights.torch_linears import (
    TorchInt4Linear,
    TorchInt8Linear,
)


def shrink(
    model: nn.Module, config: EngineConfig, fill: Callable[[str], None] | None = None
) -> list[MemoryRow]:
    """Put packed, 8-bit or 4-bit layers in place of all linear ones, the head included.

    Weights are rounded to the nearest level, without calibration: int8 with a scale per output,
    int4 per `config.group_size` weights. Each old weight is freed before the next layer is made.
    Layers that are compressed already stay as they are, and so do those that torch multiplies
    faster here. A head whose weight is the embedding's
    stays one tensor while it is only packed; quantised, it becomes one of its own.

    Args:
        model: On its device.
        config: `weights` and `group_size` are read.
        fill: Called with the name of each layer before it is replaced, to read its weights; None:
            they are there.

    Returns:
        The bytes of all weights, by kind.

    Raises:
        InputError: fp8 where the device cannot, or a layer that int4 groups do not divide.
    """
    there = (p.device for p in model.parameters() if not p.is_meta)
    device = next(there, torch.device("cpu"))
    if config.weights == "fp8":
        _check_fp8(device)
    if config.weights == "model" and device.type != "cpu":
        return weight_rows(model)
    if are_layers(config, model.dtype, device):  # type: ignore[arg-type]
        open_experts(model)
    tied_embeddings = _embeddings(model) if config.weights == "model" else {}
    made: dict[int, nn.Module] = {}
    places = [
        (path, module, name, child)
        for path, module in model.named_modules()
        for name, child in module.named_children()
        if is_shrunk(child)
    ]
    for path, parent, name, layer in places:
        if id(layer) not in made:
            if fill is not None:
                fill(f"{path}.{name}".removeprefix("."))
            tied = tied_embeddings.pop(id(layer.weight), None)
            head = layer is getattr(model, "get_output_embeddings", lambda: None)()
            replacement = _replacement(layer, config, head=head)
            if replacement is None:
                continue
            made[id(layer)] = replacement
            if tied is not None:
                share_panels(tied, replacement)
            layer._parameters.clear()
        setattr(parent, name, made[id(layer)])
    return weight_rows(model)


def weight_rows(model: nn.Module) -> list[MemoryRow]:
    """Bytes of all parameters and buffers, each storage once, by the kind of their layer."""
    sizes: dict[str, int] = defaultdict(int)
    layers: dict[str, int] = defaultdict(int)
    seen: set[int] = set()
    # Layers that say how their weights lie come first: an embedding may share them.
    for module in sorted(model.modules(), key=lambda one: not isinstance(one, FrozenLinear)):
        kind = _kind(module)
        held = [*module._parameters.values(), *module._buffers.values()]
        new = [t for t in held if t is not None and t.untyped_storage().data_ptr() not in seen]
        for tensor in new:
            seen.add(tensor.untyped_storage().data_ptr())
            sizes[kind] += tensor.untyped_storage().nbytes()
        layers[kind] += bool(new)
    return [
        MemoryRow(what=f"weights, {kind}", bytes=size, note=f"{layers[kind]} layers")
        for kind, size in sizes.items()
        if size
    ]


def _kind(module: nn.Module) -> str:
    if isinstance(module, GroupedLinear):
        bits = "int4" if isinstance(module, Int4Linear) else _name(module.panels)
        groups = module.num_groups
        return bits if groups == 1 else f"{bits} in groups of {module.in_features // groups}"
    if isinstance(module, TorchInt4Linear):
        return f"int4 in groups of {module.group}"
    if isinstance(module, TorchInt8Linear):
        return _name(module.levels)
    if isinstance(module, FrozenLinear) and module.rounds:
        return "int8, activations too"
    if isinstance(module, DenseLinear):
        return f"{_name(module.panels)} packed"
    return "experts as numbers" if holds_experts(module) else "not packed"


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def is_shrunk(module: nn.Module) -> bool:
    """Whether a layer is replaced: `nn.Linear` itself, or GPT-2's transposed one.

    A subclass may compute something else.
    """
    return type(module) is nn.Linear or is_transposed(module)


def _replacement(layer: nn.Module, config: EngineConfig, *, head: bool) -> FrozenLinear | None:
    """The layer that takes its place; None: it stays as it is, torch multiplies it."""
    weight, bias = weight_of(layer), layer.bias
    dtype = weight.dtype
    bias = bias.detach() if isinstance(bias, Tensor) else None
    peaks = row_peaks(layer)
    if config.weights == "w8a8" and not head:
        return w8a8_layer(*linear_int8.quantise(weight, peaks), bias, None, dtype)
    if config.weights in ("int8", "w8a8"):  # a head reads few rows, and each tells tokens apart
        return int8_layer(*linear_int8.quantise(weight, peaks), None, bias, dtype)
    if config.weights == "int4":
        return int4_layer(*linear_int4.quantise(weight, config.group_size), None, bias, dtype)
    if config.weights == "fp8":
        return int8_layer(*linear_int8.quantise_fp8(weight, peaks), None, bias, dtype)
    return dense_layer(weight, bias)


def _check_fp8(device: torch.device) -> None:
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 9):
        raise InputError(
            f"--weights fp8: the {device.type} here multiplies no fp8 (an Ada, Hopper or newer GPU "
            "does); use --weights int8"
        )


def _embeddings(model: nn.Module) -> dict[int, tuple[nn.Module, str]]:
    """Where each embedding is, by its weight, which a head may multiply by."""
    return {
        id(child.weight): (module, name)
        for module in model.modules()
        for name, child in module.named_children()
        if isinstance(child, nn.Embedding)
    }


def share_panels(place: tuple[nn.Module, str], head: nn.Module) -> None:
    """Let an embedding read the panels of the head that it is tied to."""
    parent, name = place
    assert isinstance(head, DenseLinear)
    setattr(parent, name, PanelEmbedding(getattr(parent, name), head))
