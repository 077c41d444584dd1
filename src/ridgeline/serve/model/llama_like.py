"""Whether a model's layers are those of a Llama, by their parts; names of classes play no part.

Layers must have the children that a Llama's have, do nothing beside them, and be alike. What is
found here is computed by one operator (`direct.py`) and built without transformers (`plain.py`),
once a trial has shown that this gives the model's own logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct
from torch import nn

from ridgeline.kernels.decoder_layers import LINEARS
from ridgeline.kernels.gated_activation import gelu_tanh_mul
from ridgeline.serve.cache import KvShape
from ridgeline.serve.model.attention import Attended
from ridgeline.serve.model.fused import FusedMlp, FusedNorm

_CHILDREN = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}


class NotInOne(Exception):
    """Why the layers of a model are computed one by one."""


class NormKind(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a root mean square norm computes, beside its weight."""

    eps: float
    offset: float
    round_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaLike:
    """The layers of one model, all alike."""

    layer_name: str
    """The class of a layer, for messages."""
    linears: list[Any]
    """The linear layers of `LINEARS` of each layer in turn, of any class that multiplies."""
    norms: list[FusedNorm]
    """The norms before the attention and before the MLP of each layer in turn."""
    head_norms: list[FusedNorm | None]
    """The norms of queries and of keys of each layer in turn."""
    norm: NormKind
    """The kind of all these norms."""
    heads: int
    inner: int
    """Outputs of gate and up."""
    gelu: bool
    """gelu's tanh formula; off: silu."""
    scale: float
    softcap: float


@dataclass(frozen=True, slots=True)
class _Parts:
    """What one layer is made of."""

    linears: list[Any]
    norms: list[FusedNorm]
    head_norms: list[FusedNorm | None]
    gelu: bool


def kind_of(norm: FusedNorm) -> NormKind:
    """What a norm computes."""
    return NormKind(eps=norm.eps, offset=norm.offset, round_first=norm.round_first)


def llama_like(model: nn.Module, shapes: Sequence[KvShape], calls: Sequence[Attended]) -> LlamaLike:
    """The layers of a model whose modules are fused.

    Args:
        model: With the paged attention switched on.
        shapes: Key-value heads and head size of each layer.
        calls: How each layer calls the attention.

    Raises:
        NotInOne: They are others than a Llama's, or not alike.
    """
    base: nn.Module = model.base_model  # type: ignore[assignment]
    lists = [
        child
        for child in base.children()
        if isinstance(child, nn.ModuleList) and len(child) == len(shapes)
    ]
    if len(lists) != 1:
        raise NotInOne(f"{type(base).__name__} has no list of {len(shapes)} layers")
    kv_heads, size = shapes[0]
    whole = [_parts(layer, kv_heads, size) for layer in lists[0]]
    first = whole[0]
    norms = [norm for one in whole for norm in one.norms]
    head_norms = [norm for one in whole for norm in one.head_norms]
    kinds = {kind_of(norm) for norm in (*norms, *head_norms) if norm is not None}
    scorings = {(call.scale, call.softcap) for call in calls}
    sizes = {
        (linear.in_features, linear.out_features) for one in whole for linear in one.linears[3:4]
    }
    inners = {one.linears[4].out_features for one in whole}
    alike = (set(shapes), kinds, scorings, sizes, inners, {one.gelu for one in whole})
    if any(len(one) != 1 for one in alike):
        raise NotInOne("they are not all alike")
    if any(call.has_sinks for call in calls):
        raise NotInOne("their attention has sinks")
    ((scale, softcap),) = scorings
    return LlamaLike(
        layer_name=type(lists[0][0]).__name__,
        linears=[linear for one in whole for linear in one.linears],
        norms=norms,
        head_norms=head_norms,
        norm=kinds.pop(),
        heads=first.linears[0].out_features // size,
        inner=first.linears[4].out_features,
        gelu=first.gelu,
        scale=scale,
        softcap=softcap or 0.0,
    )


def _parts(layer: nn.Module, kv_heads: int, size: int) -> _Parts:
    """What a layer consists of that has just these parts and does nothing on the side."""
    name = type(layer).__name__
    if any(one._forward_hooks or one._forward_pre_hooks for one in layer.modules()):
        raise NotInOne(f"a {name} has hooks")
    if {name for name, _ in layer.named_children()} != _CHILDREN:
        raise NotInOne(f"a {name} has other parts than a Llama's layer")
    attention, mlp = layer.get_submodule("self_attn"), layer.get_submodule("mlp")
    norms = [layer.get_submodule(name) for name in ("input_layernorm", "post_attention_layernorm")]
    head_norms = [getattr(attention, f"{name}_norm", None) for name in ("q", "k")]
    linears: list[Any] = [
        getattr(attention if name in "qkvo" else mlp, f"{name}_proj", None) for name in LINEARS
    ]
    inside = [one for one in (*linears[:4], *head_norms) if one is not None]
    fitting = (
        all(isinstance(getattr(one, "in_features", None), int) for one in linears)
        and isinstance(mlp, FusedMlp)
        and all(isinstance(one, FusedNorm) for one in norms)
        and all(one is None or isinstance(one, FusedNorm) for one in head_norms)
        and {id(child) for child in attention.children()} == {id(one) for one in inside}
        and all(one is None or one.weight.numel() == size for one in head_norms)
        and all(one.out_features == kv_heads * size for one in linears[1:3])
    )
    if not fitting:
        raise NotInOne(f"the parts of a {name} are of other kinds than a Llama's")
    gelu = mlp.product is gelu_tanh_mul
    return _Parts(linears, norms, head_norms, gelu)  # type: ignore[arg-type]
