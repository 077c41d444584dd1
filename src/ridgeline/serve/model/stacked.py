"""Puts one operator in the place of a model's whole stack of decoder layers, on a CPU.

transformers walks through a list of layers; `Stacked` is that list, and where every token is the
model's own (no adapter) it gives out a single step that computes all of them. The layers stay in it
under their names. As with single modules (`fused.py`), the names of classes play no part: layers
must have the children that a Llama has, and a trial must show that the operator computes the same
logits; any other model stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.kernels.decoder_layers import LINEARS, Layers, decoder_layers
from ridgeline.kernels.gated_activation import gelu_tanh_mul
from ridgeline.serve.cache.form import KvShape
from ridgeline.serve.model import trial
from ridgeline.serve.model.attention import KEYWORD, Attended, Pages
from ridgeline.serve.model.fused import FusedMlp, FusedNorm
from ridgeline.serve.weights.linears import DenseLinear, FrozenLinear, GroupedLinear

_CHILDREN = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}


class Stacked(nn.ModuleList):
    """A list of layers that is walked through in one step."""

    def __init__(self, layers: nn.ModuleList, together: Layers) -> None:
        super().__init__(layers)
        self._together = together

    def walk(self, states: Tensor, **inputs: Any) -> Tensor:
        """What all layers make of [1, T, hidden]; `inputs` are those of every layer."""
        pages: Pages = inputs[KEYWORD]
        if pages.adapted or pages.counting:
            for layer in self._modules.values():
                assert layer is not None
                states = layer(states, **inputs)
            return states
        cos, sin = (one[0] for one in inputs["position_embeddings"])
        found = decoder_layers(states[0], cos, sin, self._together, pages.caches, pages.packed)
        return found[None]

    def __repr__(self) -> str:
        """Of the layers."""
        return repr(nn.ModuleList(self._modules.values()))

    def __iter__(self) -> Iterator[Any]:
        return iter((self.walk,))

    def __getitem__(self, places: Any) -> Any:
        """A slice is walked in one step, too; a number is a layer."""
        return [self.walk] if isinstance(places, slice) else super().__getitem__(places)


def stack(
    model: nn.Module, shapes: Sequence[KvShape], vocab: int, calls: Sequence[Attended]
) -> bool:
    """Replace the model's list of layers, once its modules are fused; whether it was possible.

    Args:
        model: With the paged attention switched on.
        shapes: Key-value heads and head size of each layer.
        vocab: Words.
        calls: How each layer calls the attention.
    """
    base: nn.Module = model.base_model  # type: ignore[assignment]
    for name, child in base.named_children():
        if type(child) is nn.ModuleList and len(child) == len(shapes):
            together = _together(child, shapes, calls)
            if together is None:
                return False
            before = trial.logits_over_blocks(model, list(shapes), vocab)
            setattr(base, name, Stacked(child, together))
            if trial.computes(model, list(shapes), vocab, before):
                return True
            setattr(base, name, child)
            return False
    return False


@dataclass(frozen=True, slots=True)
class _Parts:
    """What one layer is made of."""

    linears: list[FrozenLinear]
    norms: list[FusedNorm]
    head_norms: list[FusedNorm | None]
    gelu: bool


def _together(
    layers: nn.ModuleList, shapes: Sequence[KvShape], calls: Sequence[Attended]
) -> Layers | None:
    """All weights, where layers are alike and of a kind that the operator computes."""
    kv_heads, size = shapes[0]
    parts = [_parts(layer, kv_heads, size) for layer in layers]
    first = parts[0]
    if first is None or any(shape != shapes[0] for shape in shapes):
        return None
    whole = [one for one in parts if one is not None]
    norms = [norm for one in whole for norm in one.norms]
    head_norms = [norm for one in whole for norm in one.head_norms]
    kinds = {
        (norm.eps, norm.offset, norm.round_first)
        for norm in (*norms, *head_norms)
        if norm is not None
    }
    scorings = {(call.scale, call.softcap) for call in calls}
    sizes = {
        (linear.in_features, linear.out_features) for one in whole for linear in one.linears[3:4]
    }
    inners = {one.linears[4].out_features for one in whole}
    alike = (kinds, scorings, sizes, inners, {one.gelu for one in whole})
    if len(whole) != len(parts) or any(len(one) != 1 for one in alike):
        return None
    if any(call.has_sinks for call in calls):
        return None
    linears = [linear for one in whole for linear in one.linears]
    ((eps, offset, round_first),) = kinds
    ((scale, softcap),) = scorings
    return Layers(
        panels=[linear.get_buffer("panels") for linear in linears],
        scales=[getattr(linear, "scales", None) for linear in linears],
        biases=[linear.bias for linear in linears],
        norms=[norm.weight for norm in norms],
        head_norms=[None if norm is None else norm.weight for norm in head_norms],
        heads=first.linears[0].out_features // size,
        inner=first.linears[4].out_features,
        eps=eps,
        offset=offset,
        round_first=round_first,
        gelu=first.gelu,
        scale=scale,
        windows=[call.window or 0 for call in calls],
        softcap=softcap or 0.0,
    )


def _parts(layer: nn.Module, kv_heads: int, size: int) -> _Parts | None:
    """Of a layer that has just these parts and does nothing on the side."""
    if any(one._forward_hooks or one._forward_pre_hooks for one in layer.modules()):
        return None
    if {name for name, _ in layer.named_children()} != _CHILDREN:
        return None
    attention, mlp = layer.get_submodule("self_attn"), layer.get_submodule("mlp")
    norms = [layer.get_submodule(name) for name in ("input_layernorm", "post_attention_layernorm")]
    head_norms = [getattr(attention, f"{name}_norm", None) for name in ("q", "k")]
    linears = [
        getattr(attention if name in "qkvo" else mlp, f"{name}_proj", None) for name in LINEARS
    ]
    inside = [one for one in (*linears[:4], *head_norms) if one is not None]
    fitting = (
        isinstance(mlp, FusedMlp)
        and all(isinstance(one, FusedNorm) for one in norms)
        and all(one is None or isinstance(one, FusedNorm) for one in head_norms)
        and all(_is_multiplied(one) for one in linears)
        and {id(child) for child in attention.children()} == {id(one) for one in inside}
        and all(one is None or one.weight.numel() == size for one in head_norms)
        and all(one.out_features == kv_heads * size for one in linears[1:3])  # type: ignore[union-attr]
    )
    if not fitting:
        return None
    gelu = mlp.product is gelu_tanh_mul
    return _Parts(linears, norms, head_norms, gelu)  # type: ignore[arg-type]


def _is_multiplied(linear: Any) -> bool:
    """A linear layer that the operator takes: symmetric, and its inputs fill the panels."""
    if not isinstance(linear, DenseLinear | GroupedLinear) or linear.panels.is_cuda:
        return False
    if isinstance(linear, GroupedLinear) and linear.zeros is not None:
        return False
    if linear.panels.dtype == torch.float16:
        return False
    return linear.in_features % 2 == 0
