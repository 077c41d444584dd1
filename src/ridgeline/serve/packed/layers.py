"""A model with packed layers, taken apart into tensors and put together again.

What is kept is what a model has after its checkpoint was read: packed layers by class, size and
tensors, every other parameter and stored buffer by its name. Tensors that have several names are
kept once, and are one tensor again. Everything else (modules, computed buffers, configuration) the
library builds as it does for any checkpoint.
"""

from __future__ import annotations

from typing import Any

import msgspec
from torch import Tensor, nn

from ridgeline.checkpoints.layers import place_module
from ridgeline.checkpoints.skeleton import owner_of, set_tensor
from ridgeline.kernels.cpu.build import load
from ridgeline.serve.messages import LinearKernel
from ridgeline.serve.packed.file import EntryDamaged
from ridgeline.serve.weights.experts import open_place
from ridgeline.serve.weights.linears import (
    DenseLinear,
    FrozenLinear,
    Int4Linear,
    Int8Linear,
    PanelEmbedding,
    W8A8Linear,
)
from ridgeline.serve.weights.shrink import share_panels
from ridgeline.serve.weights.torch_linears import (
    TorchInt4Linear,
    TorchInt8Linear,
    TorchW8A8Linear,
)

KINDS: dict[str, tuple[type[FrozenLinear], str | None]] = {
    kind.__name__: (kind, library)
    for kind, library in (
        (DenseLinear, "core"),
        (Int8Linear, "linear_int8"),
        (Int4Linear, "linear_int4"),
        (W8A8Linear, "linear_w8a8"),
        (TorchInt8Linear, None),
        (TorchInt4Linear, None),
        (TorchW8A8Linear, None),
    )
}
"""Class and library of kernels of each kind; None: torch's own operators."""


class PackedLayer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One packed layer; tensors by their place in the entry."""

    kind: str
    in_features: int
    out_features: int
    tensors: dict[str, int | None]
    numbers: dict[str, float | int | None]
    """What else the class keeps: the size of groups, the step of activations."""
    kernel: LinearKernel | None


class PackedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a checkpoint gave a model; tensors by their place in the entry."""

    layers: dict[str, PackedLayer]
    parameters: dict[str, int]
    buffers: dict[str, int]
    panel_embeddings: dict[str, str]
    """Embeddings that read the panels of a head, by its name."""


def take_apart(model: nn.Module) -> tuple[PackedModel, list[Tensor]]:
    """What is to be kept of a model, which stays as it is."""
    tensors: list[Tensor] = []
    places: dict[int, int] = {}

    def place(tensor: Tensor) -> int:
        if id(tensor) not in places:
            places[id(tensor)] = len(tensors)
            tensors.append(tensor)
        return places[id(tensor)]

    layers: dict[str, PackedLayer] = {}
    parameters: dict[str, int] = {}
    buffers: dict[str, int] = {}
    tied: dict[str, str] = {}
    heads: dict[int, str] = {}
    modules = dict(model.named_modules(remove_duplicate=False))
    for path, module in modules.items():
        if isinstance(module, FrozenLinear):
            layers[path] = _packed_layer(module, place)
            heads.setdefault(id(module._buffers.get("panels")), path)
    inside = tuple(f"{path}." for path, one in modules.items() if isinstance(one, PanelEmbedding))
    for path, module in modules.items():
        if isinstance(module, PanelEmbedding):
            tied[path] = heads[id(module._panels)]
        if isinstance(module, FrozenLinear | PanelEmbedding) or f"{path}.".startswith(inside):
            continue
        begin = f"{path}." if path else ""
        for leaf, parameter in module._parameters.items():
            if parameter is not None:
                parameters[begin + leaf] = place(parameter)
        for leaf, buffer in module._buffers.items():
            if buffer is not None and leaf not in module._non_persistent_buffers_set:
                buffers[begin + leaf] = place(buffer)
    return PackedModel(
        layers=layers, parameters=parameters, buffers=buffers, panel_embeddings=tied
    ), tensors


def put_together(model: nn.Module, packed: PackedModel, tensors: list[Tensor]) -> None:
    """Give a model without weights what was kept of one that had them.

    Args:
        model: On the meta device.
        packed: What was kept.
        tensors: By their places.

    Raises:
        EntryDamaged: They do not fit the model.
    """
    try:
        _put_together(model, packed, tensors)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise EntryDamaged(f"it does not fit the model ({type(error).__name__}: {error})") from None


def _put_together(model: nn.Module, packed: PackedModel, tensors: list[Tensor]) -> None:
    for path, layer in packed.layers.items():
        open_place(model, path)
        _check_fit(model.get_submodule(path), path, layer)
        place_module(model, path, _layer(layer, tensors))
    for path, head in packed.panel_embeddings.items():
        module = model.get_submodule(head)
        assert isinstance(module, DenseLinear)
        share_panels(owner_of(model, path), module)
    made: dict[int, nn.Parameter] = {}
    for name, at in packed.parameters.items():
        parent, leaf = owner_of(model, name)
        if tuple(getattr(parent, leaf).shape) != tuple(tensors[at].shape):
            raise EntryDamaged(f"{name} has another shape")
        made.setdefault(at, nn.Parameter(tensors[at], requires_grad=False))
        parent._parameters[leaf] = made[at]
    for name, at in packed.buffers.items():
        set_tensor(*owner_of(model, name), tensors[at])
    missing = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if missing:
        raise EntryDamaged(f"{missing[0]} is not in it")


def _packed_layer(module: FrozenLinear, place: Any) -> PackedLayer:
    tensors = {leaf: None if one is None else place(one) for leaf, one in module._buffers.items()}
    kept = ("group", "step")
    return PackedLayer(
        kind=type(module).__name__,
        in_features=module.in_features,
        out_features=module.out_features,
        tensors=tensors,
        numbers={name: value for name, value in vars(module).items() if name in kept},
        kernel=module.kernel,
    )


def _layer(packed: PackedLayer, tensors: list[Tensor]) -> FrozenLinear:
    """The layer as it was; its class's own `__init__` would pack again."""
    kind, library = KINDS[packed.kind]
    if library is not None:
        load(library)
    made = kind.__new__(kind)
    FrozenLinear.__init__(made, packed.in_features, packed.out_features, None)
    for leaf, at in packed.tensors.items():
        made.register_buffer(leaf, None if at is None else tensors[at])
    for name, value in packed.numbers.items():
        setattr(made, name, value)
    made.kernel = packed.kernel
    return made


def _check_fit(module: nn.Module, path: str, layer: PackedLayer) -> None:
    weight = module.weight
    expected = {(layer.out_features, layer.in_features), (layer.in_features, layer.out_features)}
    if not isinstance(weight, Tensor) or tuple(weight.shape) not in expected:
        raise EntryDamaged(f"{path} has another shape")
