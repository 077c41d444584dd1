"""Models with routed experts: Mixtral, Qwen-MoE, GPT-OSS, and DeepSeek with latent attention.

Mixtral (arXiv 2401.04088), Qwen2-MoE (2407.10671), Qwen3-MoE (2505.09388), GPT-OSS (2508.10925),
DeepSeek-V2 (2405.04434), DeepSeek-V3 (2412.19437; also Moonlight, 2502.16982), and with its
attention GLM-4.7 Flash, MiniCPM3 (2404.06395) and Youtu-LLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from ridgeline.models.counts import num_routed_layers
from ridgeline.models.families.llama_like import qwen_windows
from ridgeline.models.families.sizes import (
    FFN,
    HEADS,
    HIDDEN,
    LAYERS,
    decoder,
    of_each_layer,
    windows,
)
from ridgeline.models.keys import Keys
from ridgeline.models.spec import Experts, Indexer, LatentAttention, LayerKind, ModelSpec

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
TOP_K = (
    "num_experts_per_tok",
    "experts_per_token",
    "num_experts_per_token",
    "moe_topk",
    "moe_k",
    "top_k_experts",
    "moe_top_k",
)


def mixtral(keys: Keys) -> ModelSpec:
    """Every layer's MLP is a mixture; an expert has the width that a dense MLP would have."""
    experts = routed_experts(keys, ffn=keys.size(*FFN))
    return decoder(keys, gated_mlp=True, experts=experts, **windows(keys, every=0))


def qwen2_moe(keys: Keys) -> ModelSpec:
    """A gated shared expert beside the routed ones."""
    shared = keys.count("shared_expert_intermediate_size")
    experts = routed_experts(
        keys,
        ffn=keys.size("moe_intermediate_size"),
        num_shared=1 if shared else 0,
        shared_ffn=shared,
        shared_gate=shared > 0,
    )
    return decoder(
        keys,
        gated_mlp=True,
        attention_bias=keys.flag("qkv_bias", default=True),
        **sparse_layers(keys, experts),
        **qwen_windows(keys),
    )


def qwen3_moe(keys: Keys) -> ModelSpec:
    """Norms on each head's query and key; no shared expert."""
    bias = keys.flag("attention_bias", default=False)
    experts = routed_experts(keys, ffn=keys.size("moe_intermediate_size"))
    return decoder(
        keys,
        gated_mlp=True,
        attention_bias=bias,
        output_bias=bias,
        qk_norm="head",
        **sparse_layers(keys, experts),
        **qwen_windows(keys),
    )


def gpt_oss(keys: Keys) -> ModelSpec:
    """Biases everywhere, attention sinks, every other layer windowed."""
    bias = keys.flag("attention_bias", default=True)
    experts = routed_experts(keys, ffn=keys.size(*FFN), bias=True, router_bias=True)
    return decoder(
        keys,
        gated_mlp=True,
        head_dim=keys.size("head_dim", default=64),
        attention_bias=bias,
        output_bias=bias,
        attention_sinks=True,
        experts=experts,
        **windows(keys, every=2, default=128),
    )


def deepseek(keys: Keys, *, tied: bool = False, **traits: Any) -> ModelSpec:
    """Latent attention, shared experts, and dense layers in front.

    Args:
        keys: Of the configuration.
        tied: The default of `tie_word_embeddings`.
        traits: Further fields.
    """
    bias = keys.flag("attention_bias", default=False)
    latent = latent_of(keys)
    return decoder(
        keys,
        gated_mlp=True,
        # Keys and values are rebuilt for every head from the latent vector.
        kv_heads=keys.size(*HEADS),
        head_dim=latent.nope_dim + latent.rope_dim,
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=keys.flag("mlp_bias", default=False),
        latent=latent,
        tied_embeddings=keys.flag("tie_word_embeddings", default=tied),
        **(_deepseek_experts(keys) if keys.has("n_routed_experts") else {}),
        **traits,
    )


def latent_of(keys: Keys) -> LatentAttention:
    """The ranks and widths of latent attention."""
    if "q_lora_rank" not in keys.values:
        keys.refuse("q_lora_rank", "is missing; add the rank, or null for uncompressed queries")
    return LatentAttention(
        kv_rank=keys.size("kv_lora_rank"),
        q_rank=keys.count("q_lora_rank", default=0),
        nope_dim=keys.size("qk_nope_head_dim"),
        rope_dim=keys.size("qk_rope_head_dim"),
        value_dim=keys.size("v_head_dim"),
    )


def sparse_deepseek(keys: Keys, *, heads: int) -> ModelSpec:
    """Latent attention to chosen tokens (DeepSeek-V3.2, GLM-5).

    Args:
        keys: Of the configuration.
        heads: The default of `index_n_heads`.
    """
    layers = keys.size(*LAYERS)
    indexer = Indexer(
        heads=keys.size("index_n_heads", default=heads),
        dim=keys.size("index_head_dim", default=128),
        top_k=keys.size("index_topk", default=2048),
        skipped_layers=(keys.texts("indexer_types") or []).count("shared"),
    )
    latent = latent_of(keys)
    if not latent.q_rank:
        keys.refuse("q_lora_rank", "is null; the chooser of tokens reads compressed queries")
    # One projection from the compressed query, two from the input, a LayerNorm of keys.
    each = indexer.dim * (latent.q_rank * indexer.heads + keys.size(*HIDDEN) + 2)
    each += keys.size(*HIDDEN) * indexer.heads
    chooser = {"indexer": each * (layers - indexer.skipped_layers)}
    return deepseek(keys, indexer=indexer, extra=chooser)


def _deepseek_experts(keys: Keys) -> dict[str, Any]:
    listed = listed_mixtures(keys) is not None
    if not listed and keys.size("moe_layer_freq", default=1) != 1:
        keys.refuse("moe_layer_freq", "is not 1; only a mixture in every layer is modelled")
    ffn = keys.size("moe_intermediate_size")
    num_shared = keys.count("n_shared_experts", default=0)
    experts = routed_experts(
        keys,
        ffn=ffn,
        num_shared=num_shared,
        shared_ffn=num_shared * ffn,
        dense_layers=keys.count("first_k_dense_replace", default=0),
    )
    return placed(keys, experts)


def axk1(keys: Keys) -> ModelSpec:
    """DeepSeek-V3 with a norm behind each mixture (A.X K1, SK Telecom 2026)."""
    spec = deepseek(_one_dense_layer(keys))
    return with_extra(spec, mixture_norms=num_routed_layers(spec) * spec.hidden)


def axk2(keys: Keys) -> ModelSpec:
    """Attention to chosen tokens, a gate beside the queries, norms with gates of a small rank."""
    spec = sparse_deepseek(_one_dense_layer(keys), heads=64)
    latent = spec.latent
    assert latent is not None
    queries = spec.heads * (latent.nope_dim + latent.rope_dim)
    both = queries + spec.heads * latent.value_dim
    gates = spec.layers * latent.q_rank * (2 * both - queries)
    rank = keys.size("gated_norm_rank", default=16)
    normed = spec.layers + num_routed_layers(spec)
    return with_extra(spec, query_gates=gates, gated_norms=normed * 2 * rank * spec.hidden)


def hy_v4(keys: Keys) -> ModelSpec:
    """Attention to chosen tokens with a gate and sinks; several residual streams (2512.24880)."""
    values = dict(_one_dense_layer(keys).values)
    layers, hidden = keys.size(*LAYERS), keys.size(*HIDDEN)
    if not keys.has("indexer_types"):
        own = {0, *range(1, layers, 4)}
        values["indexer_types"] = ["full" if n in own else "shared" for n in range(layers)]
    spec = sparse_deepseek(Keys(values, keys.place), heads=64)
    latent = spec.latent
    assert latent is not None
    streams = keys.size("hc_mult", default=4)
    each = 2 * (2 * streams * streams * hidden + 2 * streams + 2)
    return with_extra(
        spec,
        output_gates=layers * spec.heads * latent.value_dim * hidden,
        sinks=layers * spec.heads,
        streams=layers * each + streams * streams * hidden + streams + 1,
    )


def _one_dense_layer(keys: Keys) -> Keys:
    """The keys, with one dense layer in front and one shared expert where they say nothing."""
    usual = {"first_k_dense_replace": 1, "n_shared_experts": 1}
    return Keys({**usual, **keys.values}, keys.place)


def with_extra(spec: ModelSpec, **more: int) -> ModelSpec:
    """The model with more tensors of its own."""
    return msgspec.structs.replace(spec, extra={**spec.extra, **more})


def listed_mixtures(keys: Keys) -> list[bool] | None:
    """Whether each layer's MLP is a mixture, where the file lists it; else None."""
    kinds = keys.texts("mlp_layer_types")
    if kinds is not None:
        listed = [kind != "dense" for kind in kinds]
        return list(of_each_layer(keys, "mlp_layer_types", listed))
    for name in ("moe_layer_freq", "is_moe_layer"):
        if isinstance(keys.values.get(name), list):
            flags = keys.values[name]
            if not all(one in (0, 1) for one in flags):
                keys.refuse(name, "must say of each layer whether it is a mixture, as 0 or 1")
            return list(of_each_layer(keys, name, [bool(one) for one in flags]))
    return None


def placed(keys: Keys, experts: Experts) -> dict[str, Any]:
    """The experts in the layers that the file lists, as fields of `ModelSpec`."""
    listed = listed_mixtures(keys)
    return {"experts": experts} if listed is None else in_layers(experts, listed)


def in_layers(experts: Experts, listed: list[bool]) -> dict[str, Any]:
    """The experts in these layers: dense layers in front as their number, else all layers."""
    if not any(listed):
        return {}
    dense = listed.count(False)
    if not any(listed[:dense]):
        return {"experts": msgspec.structs.replace(experts, dense_layers=dense)}
    kinds = tuple(LayerKind(attention=True, mlp="experts" if one else "dense") for one in listed)
    return {"experts": experts, "kinds": kinds}


def routed_experts(keys: Keys, **traits: object) -> Experts:
    """The routed experts, their number and how many a token takes under any of their keys."""
    num_experts = keys.size(*EXPERTS)
    top_k = keys.size(*TOP_K)
    if top_k > num_experts:
        name = next(name for name in TOP_K if keys.has(name))
        keys.refuse(name, f"is {top_k}; there are only {num_experts} experts")
    return Experts(num_experts=num_experts, top_k=top_k, **traits)  # type: ignore[arg-type]


def sparse_layers(keys: Keys, experts: Experts, default: Sequence[int] = ()) -> dict[str, Any]:
    """The experts where `decoder_sparse_step` and `mlp_only_layers` (or its default) have them."""
    every = keys.size("decoder_sparse_step", default=1)
    listed = keys.numbers("mlp_only_layers")
    dense = set(default if listed is None else listed)
    layers = keys.size(*LAYERS)
    if any(layer >= layers for layer in dense):
        keys.refuse("mlp_only_layers", f"names layer {max(dense)}; the model has {layers}")
    if not dense:
        return {"experts": msgspec.structs.replace(experts, every=every)}
    mixed = [layer not in dense and (layer + 1) % every == 0 for layer in range(layers)]
    return in_layers(experts, mixed)


READERS = {
    "mixtral": mixtral,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "gpt_oss": gpt_oss,
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
    "deepseek_v32": partial(sparse_deepseek, heads=64),
    "glm4_moe_lite": deepseek,
    "hy_v4": hy_v4,
    "glm_moe_dsa": partial(sparse_deepseek, heads=32),
    "axk1": axk1,
    "axk2": axk2,
    "minicpm3": partial(deepseek, tied=True),
    "youtu": partial(deepseek, tied=True),
}
