"""Which parts a layer has: attention, a state, an MLP, and of which kind. Layers count from 0."""

from __future__ import annotations

import functools

import msgspec

from ridgeline.models.spec import Experts, LayerKind, ModelSpec

USUAL = LayerKind(attention=True)
"""Attention and an MLP."""


def kind_of(spec: ModelSpec, layer: int) -> LayerKind:
    """The parts of one layer."""
    return spec.kinds[layer] if spec.kinds else USUAL


def attends(spec: ModelSpec, layer: int) -> bool:
    """Whether this layer keeps keys and values of every token."""
    return kind_of(spec, layer).attention


def has_state(spec: ModelSpec, layer: int) -> bool:
    """Whether this layer keeps a state of fixed size."""
    return kind_of(spec, layer).state


def is_mixture(spec: ModelSpec, layer: int) -> bool:
    """Whether this layer's MLP is a mixture of experts."""
    return is_routed(spec.experts, kind_of(spec, layer), layer)


def is_dense(spec: ModelSpec, layer: int) -> bool:
    """Whether this layer's MLP is a plain one."""
    return bool(kind_of(spec, layer).mlp) and not is_mixture(spec, layer)


def is_routed(experts: Experts | None, kind: LayerKind, layer: int) -> bool:
    """Whether a layer of this kind has such experts."""
    if experts is None or kind.mlp in ("", "dense"):
        return False
    if kind.mlp == "experts":
        return True
    return layer >= experts.dense_layers and (layer + 1) % experts.every == 0


def is_windowed(spec: ModelSpec, layer: int) -> bool:
    """Whether this layer's attention sees a window only; of each group the last sees all."""
    if not spec.sliding_window or not attends(spec, layer):
        return False
    if spec.windowed:
        return spec.windowed[layer]
    every = spec.full_attention_every
    return every == 0 or (layer + 1) % every != 0


def keeps_keys(spec: ModelSpec, layer: int) -> bool:
    """Whether this layer has keys and values of its own, and does not attend to another's."""
    return attends(spec, layer) and layer < num_layers(spec) - spec.key_sharing_layers


def with_attention_of(spec: ModelSpec, layer: int) -> ModelSpec:
    """The model, its attention that of this layer.

    >>> from ridgeline.models.presets import preset
    >>> with_attention_of(preset("Llama-3-8B"), 0).heads
    32
    """
    return as_windowed(spec) if is_windowed(spec, layer) else spec


def as_windowed(spec: ModelSpec) -> ModelSpec:
    """The model, its attention that of its windowed layers."""
    shape = spec.windowed_attention
    if shape is None and not spec.values_are_keys:
        return spec
    sizes = {} if shape is None else msgspec.structs.asdict(shape)
    if "sinks" in sizes:
        sizes["attention_sinks"] = sizes.pop("sinks")
    return msgspec.structs.replace(spec, values_are_keys=False, **sizes)


def num_layers(spec: ModelSpec) -> int:
    """Layers of both stacks."""
    return spec.layers + spec.decoder_layers


@functools.lru_cache(maxsize=512)
def _counted(kinds: tuple[LayerKind, ...], layers: int) -> tuple[int, int]:
    if not kinds:
        return layers, 0
    return sum(one.attention for one in kinds), sum(one.state for one in kinds)


def num_attention_layers(spec: ModelSpec) -> int:
    """The number of layers with attention.

    >>> from ridgeline.models.presets import preset
    >>> spec = preset("Qwen3-Next-80B-A3B")
    >>> num_attention_layers(spec), num_state_layers(spec)
    (12, 36)
    """
    return _counted(spec.kinds, num_layers(spec))[0]


def num_state_layers(spec: ModelSpec) -> int:
    """The number of layers with a state."""
    return _counted(spec.kinds, num_layers(spec))[1]


def num_parts(spec: ModelSpec) -> int:
    """Blocks that add to the residual stream, over all layers: two of a usual layer."""
    if not spec.kinds:
        return 2 * num_layers(spec)
    return sum((one.attention or one.state) + bool(one.mlp) for one in spec.kinds)
