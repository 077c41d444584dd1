"""Decoders that differ from Llama in a trait or two; `relatives.toml` lists them with their papers.

A family belongs here where its row says all: parameters follow from `config.json`'s usual keys and
the traits, and from a function here for tensors beyond these: small ones beside the projections,
activations with parameters, norms inside a block, gates of one number for each head. What they
multiply is not counted as work.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from ridgeline.models.families.mixtures import placed, routed_experts, sparse_layers
from ridgeline.models.families.sizes import (
    FFN,
    LAYERS,
    NO_WINDOW,
    POSITIONS,
    Windows,
    decoder,
    is_null,
    windows,
    windows_of,
)
from ridgeline.models.keys import Keys
from ridgeline.models.spec import ModelSpec, num_attention_layers, num_layers


class KeyedFlag(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A trait that a key of the configuration switches."""

    key: str
    default: bool = False


class QueryKeyNorm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Norms on queries and keys, always or where a key says so."""

    kind: Literal["head", "full"]
    key: str | None = None
    default: bool = False


class ExpertKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys that a mixture's sizes stand under."""

    ffn: str
    num_shared: str | None = None
    """The number of shared experts, each as wide as a routed one."""
    shared_ffn: str | None = None
    """The width of the one shared expert."""
    dense_layers: str | None = None
    """The number of dense layers before the mixtures."""
    shared_default: int = 0
    """The number of shared experts, or the shared expert's width, where the file says nothing."""
    shared_gate: bool = False
    """Whether a learned gate scales the shared expert's output."""
    every: str | None = None
    """One layer in so many is a mixture."""
    dense_list: tuple[int, ...] | None = None
    """What `mlp_only_layers`, the list of dense layers, is where the file has none; None: the
    family has no such list."""
    dense_default: int = 0
    """Dense layers in front where the file says nothing."""
    shared_bias: KeyedFlag | None = None
    """The key that says whether shared experts have biases."""
    router_bias: bool = False
    """Whether the router adds a learned bias to each expert's score."""


class WindowKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which layers see a window where `layer_types` does not say it."""

    every: int = 0
    """The last of so many layers sees all; 0: none does."""
    default: int = 0
    """The window's size where the file says none."""
    key: str = "sliding_window"
    period: str | None = None
    """The key of `every`, where there is one."""
    first: bool = False
    """Whether the first of so many layers sees all, not the last."""
    twice: str | None = None
    """The key of twice the window's size, where that is what files have."""
    listed: bool = False
    """Whether only `layer_types` can say it."""


class Relative(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a family has that Llama has not, as one row says it."""

    gated_mlp: bool = True
    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = True
    norms_per_layer: int = 2
    final_norm: bool = True
    parallel_block: bool = False
    tied: bool = False
    attention_bias: bool | KeyedFlag = False
    output_bias: bool | KeyedFlag = False
    mlp_bias: bool | KeyedFlag = False
    head_bias: bool | KeyedFlag = False
    attention_sinks: bool = False
    attention_gate: bool = False
    gate_bias: bool = True
    head_dim: int = 0
    """The default of `head_dim` where it is not the hidden size over the heads; 0: it is."""
    never_tied: bool = False
    mlp_halved: bool = False
    """Whether the stated width is that of both up projections of the gated MLP together."""
    dense_width: tuple[str, ...] = ()
    """The keys of the dense MLP's width, where the usual one is the experts'."""
    learned_positions: bool = False
    position_offset: int = 0
    embedding_norm: bool = False
    windows: WindowKeys | None = None
    refused: dict[str, str] = {}
    """Keys that must not be true, and why."""
    qk_norm: QueryKeyNorm | None = None
    experts: ExpertKeys | None = None


def read_relative(row: Relative, keys: Keys) -> ModelSpec:
    """The model of a family that a row describes."""
    return with_own_tensors(decoder(keys, **traits_of(row, keys), **windows_by(row.windows, keys)))


def with_own_tensors(spec: ModelSpec) -> ModelSpec:
    """The model with the tensors that its family has beyond its row's traits."""
    own = OWN_TENSORS.get(spec.family)
    return spec if own is None else msgspec.structs.replace(spec, extra=own(spec))


def windows_by(row: WindowKeys | None, keys: Keys) -> Windows:
    """The layers that see a window only, by `layer_types` or else by a row."""
    if row is None:
        return windows(keys, every=None)
    default = row.default
    if row.twice:
        default = keys.count(row.twice, default=2 * default) // 2
    if keys.has("layer_types"):
        return windows(keys, every=None, default=default, key=row.key)
    if row.listed:
        keys.refuse("layer_types", "is missing; add it, as transformers writes it")
    if is_null(keys, row.key):
        return NO_WINDOW
    window, layers = keys.count(row.key, default=default), range(keys.size(*LAYERS))
    if row.period and isinstance(pattern := keys.values.get(row.period) or 0, str):  # such as LLLG
        if set(pattern) - {"L", "G"}:
            keys.refuse(row.period, f"is {pattern!r}; its letters must be L, a window, and G, none")
        return windows_of(window, tuple(pattern[n % len(pattern)] == "L" for n in layers))
    every = keys.size(row.period, default=row.every) if row.period else row.every
    if row.first:
        return windows_of(window, tuple(n % every != 0 for n in layers))
    return windows(keys, every=every, default=default, key=row.key)


def traits_of(row: Relative, keys: Keys) -> dict[str, Any]:
    """The fields of `ModelSpec` that a row fixes, or reads under the keys that it names."""
    for name, why in row.refused.items():
        if keys.flag(name, default=False):
            keys.refuse(name, f"is true; {why}")
    traits: dict[str, Any] = {
        name: _flag(getattr(row, name), keys)
        for name in ("attention_bias", "output_bias", "mlp_bias", "head_bias")
    }
    traits |= {name: getattr(row, name) for name in _FIXED}
    placed_experts = {} if row.experts is None else _experts(row.experts, keys)
    experts = placed_experts.get("experts")
    if row.mlp_halved:
        traits["ffn"] = keys.size(*FFN) // 2
    elif row.dense_width:
        traits["ffn"] = keys.size(*row.dense_width)
    elif experts is not None and not keys.has(*FFN):
        traits["ffn"] = experts.ffn  # no layer has another MLP
    if row.head_dim:
        traits["head_dim"] = keys.size("head_dim", default=row.head_dim)
    if row.learned_positions:
        traits["max_positions"] = keys.size(*POSITIONS)
    tied = keys.flag("tie_word_embeddings", default=row.tied)
    traits["tied_embeddings"] = tied and not row.never_tied
    traits["qk_norm"] = _query_key_norm(row.qk_norm, keys)
    return traits | placed_experts


def _flag(trait: bool | KeyedFlag, keys: Keys) -> bool:
    return trait if isinstance(trait, bool) else keys.flag(trait.key, default=trait.default)


def _query_key_norm(norm: QueryKeyNorm | None, keys: Keys) -> str:
    if norm is None or (norm.key is not None and not keys.flag(norm.key, default=norm.default)):
        return "none"
    return norm.kind


def _experts(named: ExpertKeys, keys: Keys) -> dict[str, Any]:
    """The experts as fields of `ModelSpec`, in the layers that the file names."""
    ffn = keys.size(named.ffn)
    count = keys.count(named.num_shared, default=named.shared_default) if named.num_shared else 0
    shared = count * ffn
    if named.shared_ffn:
        shared = keys.count(named.shared_ffn, default=named.shared_default)
        count = int(shared > 0)
    dense = named.dense_default
    if named.dense_layers:
        dense = keys.count(named.dense_layers, default=dense)
    experts = routed_experts(
        keys,
        ffn=ffn,
        num_shared=count,
        shared_ffn=shared,
        shared_gate=named.shared_gate and shared > 0,
        dense_layers=dense,
        every=keys.size(named.every, default=1) if named.every else 1,
        router_bias=named.router_bias,
        shared_bias=named.shared_bias is not None and _flag(named.shared_bias, keys),
    )
    if named.dense_list is None:
        return placed(keys, experts)
    return sparse_layers(keys, experts, named.dense_list)


_FIXED = (
    "gated_mlp",
    "norm",
    "norm_bias",
    "norms_per_layer",
    "final_norm",
    "parallel_block",
    "attention_sinks",
    "attention_gate",
    "gate_bias",
    "learned_positions",
    "position_offset",
    "embedding_norm",
)
"""Traits that no key switches."""
_TABLE = Path(__file__).with_name("relatives.toml")
READERS = {
    family: partial(read_relative, row)
    for family, row in msgspec.toml.decode(_TABLE.read_bytes(), type=dict[str, Relative]).items()
}


def apertus(spec: ModelSpec) -> dict[str, int]:
    """The activation xIELU has two numbers (arXiv 2411.13010)."""
    return {"act_fn": 2 * num_layers(spec)}


def bitnet(spec: ModelSpec) -> dict[str, int]:
    """Norms in front of the output and the down projection."""
    return {"sub_norms": num_layers(spec) * (spec.hidden + spec.ffn)}


def diffllama(spec: ModelSpec) -> dict[str, int]:
    """Four vectors make the share that one attention map takes from the other (2410.05258)."""
    return {"lambda": 4 * spec.head_dim * num_layers(spec)}


def doge(spec: ModelSpec) -> dict[str, int]:
    """Scales of both residuals, and a score for each value (2412.11834)."""
    scores = spec.kv_heads + spec.kv_heads * spec.kv_heads * spec.head_dim
    scores += spec.kv_heads if spec.attention_bias else 0
    return {"scores": num_layers(spec) * scores, "residuals": num_layers(spec) * 2 * spec.hidden}


def gate_of_heads(spec: ModelSpec) -> dict[str, int]:
    """One gate for each head, read from the layer's input (Ling 2.5)."""
    return {"head_gates": num_attention_layers(spec) * spec.hidden * spec.heads}


def rwkv(spec: ModelSpec) -> dict[str, int]:
    """Two vectors in front of the MLP that mix a token with the one before it."""
    return {"time_mix": num_layers(spec) * 2 * spec.hidden}


def layer_before_head(spec: ModelSpec) -> dict[str, int]:
    """A layer and a norm before the head (the embedding's norm is the first layer's, too)."""
    return {"lm_head.dense": spec.hidden * (spec.hidden + 1)}


def one_row_more(spec: ModelSpec) -> dict[str, int]:
    """A row of the embedding that the head has not."""
    return {"embed_tokens": spec.hidden}


OWN_TENSORS: dict[str, Callable[[ModelSpec], dict[str, int]]] = {
    "apertus": apertus,
    "bailing_hybrid": gate_of_heads,
    "bitnet": bitnet,
    "diffllama": diffllama,
    "doge": doge,
    "lfm3": gate_of_heads,
    "modernbert-decoder": layer_before_head,
    "moshi": one_row_more,
    "rwkv": rwkv,
}
"""Model type → its function."""
