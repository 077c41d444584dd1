"""Decoders that differ from Llama in a trait or two; `relatives.toml` lists them with their papers.

A family belongs here where its row says all: parameters follow from `config.json`'s usual keys and
the traits. What has tensors of its own needs a reader in code, in another file of this folder.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from ridgeline.models.families.mixtures import routed_experts
from ridgeline.models.families.sizes import FFN, decoder, windows
from ridgeline.models.keys import Keys
from ridgeline.models.spec import Experts, ModelSpec


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
    shared_gate: bool = False
    """Whether a learned gate scales the shared expert's output."""
    every: str | None = None
    """One layer in so many is a mixture."""
    dense_list: str | None = None
    """A list of the dense layers, which must be those in front."""


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
    qk_norm: QueryKeyNorm | None = None
    experts: ExpertKeys | None = None


def read_relative(row: Relative, keys: Keys) -> ModelSpec:
    """The model of a family that a row describes."""
    return decoder(keys, **traits_of(row, keys), **windows(keys, every=None))


def traits_of(row: Relative, keys: Keys) -> dict[str, Any]:
    """The fields of `ModelSpec` that a row fixes, or reads under the keys that it names."""
    traits: dict[str, Any] = {
        name: _flag(getattr(row, name), keys)
        for name in ("attention_bias", "output_bias", "mlp_bias", "head_bias")
    }
    fixed = ("gated_mlp", "norm", "norm_bias", "norms_per_layer", "final_norm", "parallel_block")
    traits |= {name: getattr(row, name) for name in fixed}
    experts = None if row.experts is None else _experts(row.experts, keys)
    if experts is not None and not keys.has(*FFN):
        traits["ffn"] = experts.ffn  # no layer has another MLP
    traits["tied_embeddings"] = keys.flag("tie_word_embeddings", default=row.tied)
    traits["qk_norm"] = _query_key_norm(row.qk_norm, keys)
    traits["experts"] = experts
    return traits


def _flag(trait: bool | KeyedFlag, keys: Keys) -> bool:
    return trait if isinstance(trait, bool) else keys.flag(trait.key, default=trait.default)


def _query_key_norm(norm: QueryKeyNorm | None, keys: Keys) -> str:
    if norm is None or (norm.key is not None and not keys.flag(norm.key, default=norm.default)):
        return "none"
    return norm.kind


def _experts(named: ExpertKeys, keys: Keys) -> Experts:
    ffn = keys.size(named.ffn)
    count = keys.count(named.num_shared, default=0) if named.num_shared else 0
    shared = count * ffn
    if named.shared_ffn:
        shared = keys.count(named.shared_ffn, default=0)
        count = int(shared > 0)
    dense = keys.count(named.dense_layers, default=0) if named.dense_layers else 0
    listed = sorted((keys.numbers(named.dense_list) or []) if named.dense_list else [])
    if listed != list(range(len(listed))):
        keys.refuse(str(named.dense_list), f"is {listed}; only layers in front are modelled")
    return routed_experts(
        keys,
        ffn=ffn,
        num_shared=count,
        shared_ffn=shared,
        shared_gate=named.shared_gate and shared > 0,
        dense_layers=max(dense, len(listed)),
        every=keys.size(named.every, default=1) if named.every else 1,
    )


_TABLE = Path(__file__).with_name("relatives.toml")
READERS = {
    family: partial(read_relative, row)
    for family, row in msgspec.toml.decode(_TABLE.read_bytes(), type=dict[str, Relative]).items()
}
