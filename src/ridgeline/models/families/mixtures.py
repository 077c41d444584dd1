"""Models with routed experts: Mixtral, Qwen-MoE, GPT-OSS, and DeepSeek with latent attention.

Mixtral (arXiv 2401.04088), Qwen2-MoE (2407.10671), Qwen3-MoE (2505.09388), GPT-OSS (2508.10925),
DeepSeek-V2 (2405.04434), DeepSeek-V3 (2412.19437; also Moonlight, 2502.16982), and with its
attention GLM-4.7 Flash, MiniCPM3 (2404.06395) and Youtu-LLM.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ridgeline.models.families.llama_like import qwen_windows
from ridgeline.models.families.sizes import FFN, HEADS, HIDDEN, LAYERS, decoder, windows
from ridgeline.models.keys import Keys
from ridgeline.models.spec import Experts, Indexer, LatentAttention, ModelSpec

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
TOP_K = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token")


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
        **_sparse_layers(keys),
    )
    return decoder(
        keys,
        gated_mlp=True,
        attention_bias=keys.flag("qkv_bias", default=True),
        experts=experts,
        **qwen_windows(keys),
    )


def qwen3_moe(keys: Keys) -> ModelSpec:
    """Norms on each head's query and key; no shared expert."""
    bias = keys.flag("attention_bias", default=False)
    experts = routed_experts(keys, ffn=keys.size("moe_intermediate_size"), **_sparse_layers(keys))
    return decoder(
        keys,
        gated_mlp=True,
        attention_bias=bias,
        output_bias=bias,
        qk_norm="head",
        experts=experts,
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
        experts=_deepseek_experts(keys) if keys.has("n_routed_experts") else None,
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


def _deepseek_experts(keys: Keys) -> Experts:
    if keys.size("moe_layer_freq", default=1) != 1:
        keys.refuse("moe_layer_freq", "is not 1; only a mixture in every layer is modelled")
    ffn = keys.size("moe_intermediate_size")
    num_shared = keys.count("n_shared_experts", default=0)
    return routed_experts(
        keys,
        ffn=ffn,
        num_shared=num_shared,
        shared_ffn=num_shared * ffn,
        dense_layers=_dense_in_front(keys),
    )


def _dense_in_front(keys: Keys) -> int:
    """The dense layers before the mixtures, as a number or as a list of all layers' kinds."""
    kinds = keys.texts("mlp_layer_types")
    if kinds is None:
        return keys.count("first_k_dense_replace", default=0)
    dense = kinds.count("dense")
    if kinds != ["dense"] * dense + ["sparse"] * (len(kinds) - dense):
        keys.refuse(
            "mlp_layer_types",
            "has dense layers behind sparse ones; only layers in front are modelled",
        )
    return dense


def routed_experts(keys: Keys, **traits: object) -> Experts:
    """The routed experts, their number and how many a token takes under any of their keys."""
    num_experts = keys.size(*EXPERTS)
    top_k = keys.size(*TOP_K)
    if top_k > num_experts:
        name = next(name for name in TOP_K if keys.has(name))
        keys.refuse(name, f"is {top_k}; there are only {num_experts} experts")
    return Experts(num_experts=num_experts, top_k=top_k, **traits)  # type: ignore[arg-type]


def _sparse_layers(keys: Keys) -> dict[str, int]:
    """Which layers are mixtures, from `decoder_sparse_step` and `mlp_only_layers`."""
    dense = sorted(keys.numbers("mlp_only_layers") or [])
    if dense != list(range(len(dense))):
        keys.refuse("mlp_only_layers", f"is {dense}; only layers in front (0, 1, …) are modelled")
    if len(dense) > keys.size(*LAYERS):
        keys.refuse("mlp_only_layers", "lists more layers than the model has")
    return {"dense_layers": len(dense), "every": keys.size("decoder_sparse_step", default=1)}


READERS = {
    "mixtral": mixtral,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "gpt_oss": gpt_oss,
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
    "deepseek_v32": partial(sparse_deepseek, heads=64),
    "glm4_moe_lite": deepseek,
    "glm_moe_dsa": partial(sparse_deepseek, heads=32),
    "minicpm3": partial(deepseek, tied=True),
    "youtu": partial(deepseek, tied=True),
}
