"""A stack of decoder layers as one operator, for CPUs: all that stands between embedding and head.

Each layer, with n(x) the root mean square norm of `rms_norm.py` and W the linear layers:

    q, k, v = W_q n(x), W_k n(x), W_v n(x)      q and k normed per head where the model does so,
                                                then rotated by cos and sin (Su et al., 2104.09864)
    x ← x + W_o attention(q, k, v)              over the paged cache, into which k and v go first
    x ← x + W_down (act(W_gate n'(x)) · W_up n'(x))

Everything is rounded to x's dtype where a model of single modules rounds it, so results differ from
such a model's only where the order of float32 sums tips a rounding. A decode step of a small model
takes longer to call its operators one by one than to compute them; `cpu/decoder_layers.cpp` says
how one team of threads computes them all.

T tokens, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.kernels import linear, linear_int4, linear_int8, linear_w8a8
from ridgeline.kernels.cpu.build import CORE, load
from ridgeline.kernels.gated_activation import gelu_tanh_mul_reference, silu_mul_reference
from ridgeline.kernels.paged_attention import (
    LayerCache,
    PackedTokens,
    paged_attention_reference,
    write_cache_reference,
)
from ridgeline.kernels.rms_norm import rms_norm_reference

_OPERATORS = torch.library.Library("ridgeline", "FRAGMENT")
_OPERATORS.define(
    "decoder_layers(Tensor x, Tensor cos, Tensor sin, Tensor[] panels, Tensor?[] scales, "
    "Tensor?[] biases, Tensor[] norms, Tensor?[] head_norms, int heads, int inner, float eps, "
    "float offset, bool round_first, bool gelu, Tensor(a!)[] caches, Tensor(b!)[] cache_scales, "
    "Tensor starts, Tensor lengths, Tensor tables, Tensor slots, float scale, int[] windows, "
    "float softcap, Tensor? seen, int[] firsts, Tensor?[] offsets, float[] steps, "
    "Tensor(c!) workspace) -> Tensor"
)

LINEARS = ("q", "k", "v", "o", "gate", "up", "down")
"""The linear layers of a decoder layer, in the operator's order."""
READERS = (("q", "k", "v"), ("o",), ("gate", "up"), ("down",))
"""Groups of `LINEARS` that read the same activations, in the order in which these are computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Weights and constants of L layers."""

    panels: list[Tensor]
    """The weights of `LINEARS` of each layer in turn, from `linear.pack`, `linear_int8.pack` or
    `linear_int4.pack` or `linear_w8a8.pack`; inputs are not padded."""
    scales: list[Tensor | None]
    """Where panels are quantised, from `pack_groups` or `linear_w8a8.pack`; symmetric, without zero
    points."""
    offsets: list[Tensor | None]
    """Where activations are rounded to int8, the sums of `linear_w8a8.pack`."""
    steps: list[float]
    """What those of each of `READERS` of each layer in turn are divided by; 0: each row has its
    own step, or they are not rounded."""
    biases: list[Tensor | None]
    """The biases beside `panels`, [outputs] float32."""
    norms: list[Tensor]
    """The norms before the attention and before the MLP of each layer in turn, [hidden]."""
    head_norms: list[Tensor | None]
    """The norms of queries and of keys of each layer in turn, [D], or None."""
    heads: int
    """The number of heads of queries."""
    inner: int
    """Outputs of gate and up."""
    eps: float
    offset: float
    round_first: bool
    """This and the two before it belong to all norms, as `rms_norm` has them."""
    gelu: bool
    """gelu's tanh formula; off: silu."""
    scale: float
    """The scale of the scores."""
    windows: list[int]
    """The attention window of each layer; 0: none."""
    softcap: float
    """The soft cap of the scores; 0: none."""


def decoder_layers(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    layers: Layers,
    caches: list[LayerCache],
    packed: PackedTokens,
) -> Tensor:
    """[T, hidden] to the same, in bfloat16 or float32; keys and values are in the caches then.

    Args:
        x: Embedded tokens.
        cos: [T, D] of x's dtype, of each token's position; the two halves of a row are alike.
        sin: The sines, laid out as `cos`.
        layers: In the dtype of x, or quantised.
        caches: By layer.
        packed: Which token belongs to which sequence.

    Raises:
        InputError: The CPU kernels cannot be compiled; this operator has no other form.
    """
    if not torch.compiler.is_compiling():
        load(CORE)
    scales = [one for cache in caches for one in (cache.key_scales, cache.value_scales)]
    keys = caches[0].keys
    heads = (layers.heads + keys.shape[1]) * keys.shape[3]
    sights = [packed.sight(window or None) for window in layers.windows]
    # Made here, where torch counts what a step allocates.
    row = 2 * (x.shape[1] + heads + layers.inner) + _levels(x, layers, keys.shape[3])
    workspace = x.new_empty(row * len(x))
    return torch.ops.ridgeline.decoder_layers.default(
        x,
        cos,
        sin,
        layers.panels,
        layers.scales,
        layers.biases,
        layers.norms,
        layers.head_norms,
        layers.heads,
        layers.inner,
        layers.eps,
        layers.offset,
        layers.round_first,
        layers.gelu,
        [one for cache in caches for one in (cache.keys, cache.values)],
        [one for one in scales if one is not None],
        packed.query_starts,
        packed.context_lengths,
        packed.block_tables,
        packed.slots,
        layers.scale,
        [window or 0 for window, _ in sights],
        layers.softcap,
        packed.seen,
        [first for _, first in sights],
        layers.offsets,
        layers.steps,
        workspace,
    )


def _levels(x: Tensor, layers: Layers, size: int) -> int:
    """The room for a row of rounded activations and its step, in numbers of x's dtype."""
    if all(one is None for one in layers.offsets):
        return 0
    widest = max(x.shape[1], layers.heads * size, layers.inner)
    return (-(-widest // 64) * 64 + 64 + 4) // x.element_size()


@torch.library.register_fake("ridgeline::decoder_layers")
def _states_shape(x: Tensor, *_: object) -> Tensor:
    return torch.empty_like(x)


def reference(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    layers: Layers,
    caches: list[LayerCache],
    packed: PackedTokens,
) -> Tensor:
    """The layers step by step, through the references of their parts."""
    size = cos.shape[1]
    inner_of = gelu_tanh_mul_reference if layers.gelu else silu_mul_reference
    for place, cache in enumerate(caches):
        before, before_mlp = layers.norms[2 * place : 2 * place + 2]
        of_queries, of_keys = layers.head_norms[2 * place : 2 * place + 2]
        normed = _normed(x, before, layers)
        q, k, v = (_linear(normed, layers, place, name).unflatten(1, (-1, size)) for name in "qkv")
        q = _rotated(q if of_queries is None else _normed(q, of_queries, layers), cos, sin)
        k = _rotated(k if of_keys is None else _normed(k, of_keys, layers), cos, sin)
        write_cache_reference(k, v, cache, packed)
        attended = paged_attention_reference(
            q,
            cache,
            packed,
            scale=layers.scale,
            window=layers.windows[place] or None,
            softcap=layers.softcap or None,
        )
        x = x + _linear(attended.flatten(1), layers, place, "o")
        normed = _normed(x, before_mlp, layers)
        gate, up = (_linear(normed, layers, place, name) for name in ("gate", "up"))
        x = x + _linear(inner_of(gate, up), layers, place, "down")
    return x


def _normed(x: Tensor, weight: Tensor, layers: Layers) -> Tensor:
    return rms_norm_reference(
        x, weight, layers.eps, offset=layers.offset, round_first=layers.round_first
    )


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = heads.chunk(2, -1)
    return heads * cos[:, None] + torch.cat((-high, low), -1) * sin[:, None]


def _linear(x: Tensor, layers: Layers, place: int, name: str) -> Tensor:
    at = len(LINEARS) * place + LINEARS.index(name)
    panels, scales, bias = layers.panels[at], layers.scales[at], layers.biases[at]
    outputs = panels.shape[0] * linear.PANEL  # of full panels, which a reference may ask for
    if (sums := layers.offsets[at]) is not None:
        levels = linear_w8a8.unpack(panels, len(sums), x.shape[1])
        reader = next(i for i, names in enumerate(READERS) if name in names)
        step = layers.steps[len(READERS) * place + reader] or None
        assert scales is not None
        return linear_w8a8.reference(x, levels, scales, bias, step)
    if scales is None:
        return linear.linear_reference(x, linear.unpack(panels, outputs, x.shape[1]), bias)
    groups = linear_int8.unpack_groups(scales, outputs)
    if panels.dtype == torch.uint8:
        return linear_int4.reference(x, linear_int4.unpack(panels, outputs), groups, None, bias)
    levels = linear_int8.unpack(panels, outputs, x.shape[1])
    return linear_int8.reference(x, levels, groups, None, bias)
