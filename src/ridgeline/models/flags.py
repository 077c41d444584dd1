"""A model from sizes typed as flags or as one text: `layers=32,hidden=4096,heads=32,vocab=32000`.

What is not given is what the lineage has: with `gated` (Llama's) RMS norms, no biases, an untied
head, and with it off (GPT-2's) LayerNorms, biases, learned positions, a tied head.
"""

from __future__ import annotations

import difflib
from typing import Any, Required, TypedDict, Unpack, get_type_hints

from ridgeline.errors import InputError
from ridgeline.models.spec import Experts, ModelSpec


class Sizes(TypedDict, total=False):
    """What can be said about a model; `layers`, `hidden`, `heads` and `vocab` must be."""

    name: str
    layers: Required[int]
    hidden: Required[int]
    heads: Required[int]
    vocab: Required[int]
    kv_heads: int
    """Key and value heads; default: `heads`."""
    head_dim: int
    """Width of one head; default: hidden / heads."""
    ffn: int
    """Width of the MLP; default: 4 · hidden; gated, two thirds of that (Llama), rounded up to a
    multiple of 256."""
    gated: bool
    """Whether the MLP is gated; default: false when `ffn` is 4 · hidden or absent, else true."""
    tied: bool
    """Whether the head shares the embedding; default: not gated."""
    positions: int
    """Number of learned positions; 0: rotary or none. Default: 0."""
    bias: bool
    """Biases on all projections. Default: not gated."""
    experts: int
    topk: int
    moe_ffn: int
    """Width of one expert; default: `ffn`."""
    shared_ffn: int
    """Width of the shared experts together; default: 0, none."""
    dense_layers: int
    """Leading layers without experts; default: 0."""


def model_from_flags(**sizes: Unpack[Sizes]) -> ModelSpec:
    """A transformer from its sizes.

    >>> model_from_flags(layers=32, hidden=4096, heads=32, ffn=11008, vocab=32000).gated_mlp
    True
    """
    _check(sizes)
    hidden, heads = sizes["hidden"], sizes["heads"]
    if "head_dim" not in sizes and hidden % heads:
        raise InputError(
            f"model: {heads} heads do not divide the hidden size {hidden}; change one or give"
            " head_dim"
        )
    kv_heads = sizes.get("kv_heads", heads)
    if heads % kv_heads:
        raise InputError(f"model: {kv_heads} kv_heads do not divide {heads} heads; change one")
    gated = sizes.get("gated", sizes.get("ffn", 4 * hidden) != 4 * hidden)
    ffn = sizes.get("ffn", -(-8 * hidden // (3 * 256)) * 256 if gated else 4 * hidden)
    bias = sizes.get("bias", not gated)
    positions = sizes.get("positions", 0)
    return ModelSpec(
        name=sizes.get("name", "model"),
        family="generic",
        layers=sizes["layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=sizes.get("head_dim", hidden // heads),
        ffn=ffn,
        gated_mlp=gated,
        vocab=sizes["vocab"],
        max_positions=positions,
        learned_positions=positions > 0,
        tied_embeddings=sizes.get("tied", not gated),
        norm="rms" if gated else "layer",
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        experts=_experts(sizes, ffn),
    )


def model_from_text(text: str) -> ModelSpec:
    """The same from one text of `key=value` pairs, joined by commas or blanks.

    >>> model_from_text("layers=12,hidden=768,heads=12,vocab=50257").ffn
    3072
    """
    kinds = get_type_hints(Sizes)
    sizes: dict[str, Any] = {}
    for pair in text.replace(",", " ").split():
        key, _, value = pair.partition("=")
        if key not in kinds:
            near = difflib.get_close_matches(key, kinds, n=3, cutoff=0.5)
            hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(kinds)}"
            raise InputError(f"model: no size is called {key!r}; {hint}")
        if key in sizes:
            raise InputError(f"model: {key} is given twice; keep one")
        sizes[key] = _value(key, value, kinds[key])
    missing = [key for key in ("layers", "hidden", "heads", "vocab") if key not in sizes]
    if missing:
        raise InputError(f"model: {', '.join(missing)} missing in {text!r}; add {missing[0]}=…")
    return model_from_flags(**sizes)


def _value(key: str, text: str, kind: Any) -> Any:
    if kind is str:
        return text
    if kind is bool:
        if text not in ("true", "false"):
            raise InputError(f"model: {key} is {text!r}; it must be true or false")
        return text == "true"
    try:
        return int(text.replace("_", ""))
    except ValueError:
        raise InputError(f"model: {key} is {text!r}; it must be a whole number") from None


def _check(sizes: Sizes) -> None:
    zero_is_fine = ("positions", "shared_ffn", "dense_layers", "experts", "topk")
    for key, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        least = 0 if key in zero_is_fine else 1
        if value < least:
            raise InputError(f"model: {key} is {value}; it must be {least} or more")


def _experts(sizes: Sizes, ffn: int) -> Experts | None:
    num_experts = sizes.get("experts", 0)
    if not num_experts:
        return None
    top_k = sizes.get("topk", 0)
    if not 1 <= top_k <= num_experts:
        raise InputError(f"model: topk is {top_k}; it must be from 1 to {num_experts} experts")
    shared = sizes.get("shared_ffn", 0)
    return Experts(
        num_experts=num_experts,
        top_k=top_k,
        ffn=sizes.get("moe_ffn", ffn),
        num_shared=1 if shared else 0,
        shared_ffn=shared,
        dense_layers=sizes.get("dense_layers", 0),
    )
