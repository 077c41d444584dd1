"""GPT-2 and its contemporaries: LayerNorms and an MLP of two projections.

GPT and GPT-2 (Radford et al. 2018, 2019), GPT-Neo and GPT-J (EleutherAI 2021), CodeGen
(arXiv 2203.13474), SantaCoder and StarCoder (2305.06161), GPT-NeoX (2204.06745), OPT (2205.01068),
BLOOM (2211.05100), MPT (MosaicML 2023), Falcon (2311.16867), Phi-1 to Phi-2 (2306.11644).
"""

from __future__ import annotations

import msgspec

from ridgeline.models.families.sizes import (
    FFN,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    POSITIONS,
    WINDOWED,
    decoder,
    of_each_layer,
    windows_of,
)
from ridgeline.models.keys import Keys
from ridgeline.models.spec import ModelSpec


def gpt2(keys: Keys) -> ModelSpec:
    """Biases everywhere, learned positions."""
    return decoder(
        keys,
        gated_mlp=False,
        norm="layer",
        ffn=_four_times(keys),
        max_positions=keys.size("n_positions", "n_ctx", "max_position_embeddings"),
        learned_positions=True,
        tied_embeddings=keys.flag("tie_word_embeddings", default=True),
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
    )


def gpt_bigcode(keys: Keys) -> ModelSpec:
    """GPT-2's shape with one key and value for all heads (SantaCoder, StarCoder, 2305.06161)."""
    heads = keys.size(*HEADS)
    return msgspec.structs.replace(
        gpt2(keys), kv_heads=1 if keys.flag("multi_query", default=True) else heads
    )


def openai_gpt(keys: Keys) -> ModelSpec:
    """GPT as first published: norms stand behind the blocks."""
    return msgspec.structs.replace(gpt2(keys), final_norm=False)


def gpt_neo(keys: Keys) -> ModelSpec:
    """GPT-2's shape with biases on the output alone; every other layer sees 256 tokens."""
    layers = keys.size(*LAYERS)
    kinds = keys.texts("attention_layers") or _neo_layers(keys, layers)
    of_each_layer(keys, "attention_types", kinds)
    window = keys.size("window_size", default=256)
    return decoder(
        keys,
        gated_mlp=False,
        norm="layer",
        ffn=_four_times(keys),
        max_positions=keys.size(*POSITIONS),
        learned_positions=True,
        tied_embeddings=keys.flag("tie_word_embeddings", default=True),
        output_bias=True,
        mlp_bias=True,
        **windows_of(window, tuple(kind in WINDOWED for kind in kinds)),
    )


def _neo_layers(keys: Keys, layers: int) -> list[str]:
    """The kinds of layers from `[[[kinds], repeats], …]`."""
    listed = keys.values.get("attention_types") or [[["global", "local"], layers // 2]]
    try:
        return [str(kind) for kinds, times in listed for _ in range(times) for kind in kinds]
    except (TypeError, ValueError):
        keys.refuse("attention_types", f"is {listed!r}; it must be [[[kinds], repeats], …]")


def gptj(keys: Keys) -> ModelSpec:
    """Attention without biases beside the MLP, behind one norm; the head has a bias."""
    return decoder(
        keys,
        gated_mlp=False,
        norm="layer",
        norms_per_layer=1,
        ffn=_four_times(keys),
        mlp_bias=True,
        head_bias=True,
        parallel_block=True,
    )


def gpt_neox_japanese(keys: Keys) -> ModelSpec:
    """No biases but one, of the last layer's attention."""
    times = keys.size("intermediate_multiple_size", default=4)
    return decoder(
        keys,
        gated_mlp=False,
        norm="layer",
        ffn=times * keys.size(*HIDDEN),
        tied_embeddings=keys.flag("tie_word_embeddings", default=True),
        extra={"dense_bias": keys.size(*HIDDEN)},
    )


def gpt_neox(keys: Keys) -> ModelSpec:
    """Attention and MLP side by side, each with a norm of its own."""
    bias = keys.flag("attention_bias", default=True)
    return decoder(
        keys,
        gated_mlp=False,
        norm="layer",
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=True,
        parallel_block=keys.flag("use_parallel_residual", default=True),
    )


def opt(keys: Keys) -> ModelSpec:
    """GPT-2's shape; two rows of the position table are never used. The 350M is post-norm."""
    if not keys.flag("layer_norm_elementwise_affine", default=True):
        keys.refuse("layer_norm_elementwise_affine", "is false; norms without weights are not read")
    bias = keys.flag("enable_bias", default=True)
    hidden = keys.size(*HIDDEN)
    width = keys.size("word_embed_proj_dim", default=hidden)
    before = keys.flag("do_layer_norm_before", default=True)
    return decoder(
        keys,
        gated_mlp=False,
        norm="layer",
        max_positions=keys.size(*POSITIONS),
        learned_positions=True,
        position_offset=2,
        embedding_dim=0 if width == hidden else width,
        tied_embeddings=keys.flag("tie_word_embeddings", default=True),
        final_norm=before and not keys.flag("_remove_final_layer_norm", default=False),
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
    )


def bloom(keys: Keys) -> ModelSpec:
    """Biases everywhere, a norm behind the embedding, ALiBi instead of positions."""
    return decoder(
        keys,
        gated_mlp=False,
        norm="layer",
        ffn=4 * keys.size(*HIDDEN),
        embedding_norm=True,
        tied_embeddings=keys.flag("tie_word_embeddings", default=True),
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
    )


def mpt(keys: Keys) -> ModelSpec:
    """No biases, not even in the norms; ALiBi, or else learned positions."""
    attention = keys.table("attn_config")
    if not keys.flag("no_bias", default=True):
        keys.refuse("no_bias", "is false; MPT with biases is not read")
    if attention.flag("qk_ln", default=False):
        attention.refuse("qk_ln", "is true; MPT with norms on queries and keys is not read")
    learned = keys.flag("learned_pos_emb", default=True)
    if attention.flag("alibi", default=True):
        learned = False
    return decoder(
        keys,
        gated_mlp=False,
        norm="layer",
        norm_bias=False,
        ffn=keys.size("expansion_ratio", default=4) * keys.size(*HIDDEN),
        kv_heads=attention.size("kv_n_heads", default=keys.size(*HEADS)),
        max_positions=keys.size(*POSITIONS, default=None if learned else 0),
        learned_positions=learned,
        tied_embeddings=keys.flag("tie_word_embeddings", default=True),
    )


def falcon(keys: Keys) -> ModelSpec:
    """The 7B shares one key and value and one norm; the larger ones group and have two."""
    heads = keys.size(*HEADS)
    grouped = keys.flag("new_decoder_architecture", default=False)
    parallel = keys.flag("parallel_attn", default=True)
    if grouped:
        kv_heads = keys.size(*KV_HEADS, default=heads)
        norms = keys.size("num_ln_in_parallel_attn", default=2)
    else:
        kv_heads = 1 if keys.flag("multi_query", default=True) else heads
        norms = 1 if parallel else 2
    bias = keys.flag("bias", default=False)
    return decoder(
        keys,
        gated_mlp=False,
        norm="layer",
        norms_per_layer=norms,
        kv_heads=kv_heads,
        ffn=_four_times(keys),
        tied_embeddings=keys.flag("tie_word_embeddings", default=True),
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        parallel_block=parallel or grouped,
    )


def phi(keys: Keys) -> ModelSpec:
    """Attention and MLP side by side behind one norm; biases everywhere, in the head too."""
    return decoder(
        keys,
        gated_mlp=False,
        norm="layer",
        norms_per_layer=1,
        qk_norm="head" if keys.flag("qk_layernorm", default=False) else "none",
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
        head_bias=True,
        parallel_block=True,
    )


def _four_times(keys: Keys) -> int:
    """The MLP's width as given, else four times the hidden size."""
    return keys.size(*FFN, default=4 * keys.size(*HIDDEN))


READERS = {
    "codegen": gptj,
    "gpt2": gpt2,
    "gpt_bigcode": gpt_bigcode,
    "gpt_neo": gpt_neo,
    "gpt_neox_japanese": gpt_neox_japanese,
    "gptj": gptj,
    "openai-gpt": openai_gpt,
    "gpt_neox": gpt_neox,
    "opt": opt,
    "bloom": bloom,
    "mpt": mpt,
    "falcon": falcon,
    "phi": phi,
}
