"""Families whose layers differ count what transformers builds, and keep what its cache keeps."""

from __future__ import annotations

from typing import Any

import pytest
from tests.models.test_counts import DEEPSEEK, LLAMA_LIKE, count_in_transformers

from ridgeline.cost.serving.kv_cache import bytes_per_token, kv_cache_bytes
from ridgeline.errors import InputError
from ridgeline.models.config import spec_from_config
from ridgeline.models.counts import active_parameter_count, parameter_count
from ridgeline.models.spec import is_mixture, is_windowed, num_layers

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

NEAR, FULL = "sliding_attention", "full_attention"
SIZES = {
    **LLAMA_LIKE,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MIXTURE = {"moe_intermediate_size": 40, "num_experts": 4, "num_experts_per_tok": 2}
GEMMA = {
    **SIZES,
    "vocab_size_per_layer_input": 97,
    "hidden_size_per_layer_input": 8,
    "sliding_window": 12,
}
GEMMA_3N = {**GEMMA, "laurel_rank": 4, "num_hidden_layers": 10, "num_kv_shared_layers": 5}
LLAMA_4 = {
    **SIZES,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "intermediate_size_mlp": 80,
    "attention_chunk_size": 16,
}
GPT = {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 64, "vocab_size": 97}
LATENT = {**DEEPSEEK, "n_shared_experts": 1, "first_k_dense_replace": 1, "pad_token_id": 0}
INDEX = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 32}
LAGUNA = {**SIZES, **MIXTURE, "shared_expert_intermediate_size": 24, "sliding_window": 12}
MIMO = {
    **SIZES,
    "v_head_dim": 12,
    "moe_intermediate_size": 40,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "sliding_window": 12,
}
ERNIE = {
    **SIZES,
    "moe_intermediate_size": 40,
    "moe_num_experts": 4,
    "moe_k": 2,
    "moe_layer_start_index": 1,
}
VARIANTS: list[dict[str, Any]] = [
    {"model_type": "llama4_text", **LLAMA_4, "interleave_moe_layer_step": 2},
    {
        "model_type": "gemma4_text",
        **GEMMA,
        "num_hidden_layers": 8,
        "layer_types": [NEAR, NEAR, NEAR, FULL] * 2,
        "num_kv_shared_layers": 4,
        "use_double_wide_mlp": True,
        "global_head_dim": 24,
    },
    {"model_type": "gpt_bigcode", **GPT},
    {"model_type": "gemma3n_text", **GEMMA_3N},
    {"model_type": "llama4_text", **LLAMA_4, "no_rope_layers": [1, 0, 1, 1]},
    {"model_type": "gemma3n_text", **GEMMA_3N, "intermediate_size": [48] * 7 + [64] * 3},
    {"model_type": "gemma3n_text", **GEMMA_3N, "altup_correct_scale": False},
    {
        "model_type": "gemma4_text",
        **GEMMA,
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 24,
        "hidden_size_per_layer_input": 0,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "layer_types": [NEAR, NEAR, NEAR, FULL],
    },
    {"model_type": "gemma4_unified_text", **SIZES, "sliding_window": 12},
    {"model_type": "gpt_bigcode", **GPT, "multi_query": False},
    {"model_type": "gptj", **GPT, "rotary_dim": 8},
    {"model_type": "codegen", **GPT, "rotary_dim": 8},
    {"model_type": "openai-gpt", **GPT},
    {
        "model_type": "gpt_neo",
        "hidden_size": 64,
        "num_layers": 4,
        "num_heads": 4,
        "vocab_size": 97,
        "max_position_embeddings": 64,
        "attention_types": [[["global"], 2], [["local"], 2]],
    },
    {
        "model_type": "gpt_neox_japanese",
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "vocab_size": 97,
    },
    {
        "model_type": "laguna",
        **LAGUNA,
        "layer_types": [FULL, NEAR, NEAR, NEAR],
        "num_attention_heads_per_layer": [4, 8, 8, 8],
        "mlp_layer_types": ["sparse", "dense", "sparse", "dense"],
    },
    {"model_type": "laguna", **LAGUNA, "gating": "per-element", "attention_bias": True},
    {"model_type": "mimo_v2_flash", **MIMO, "num_hidden_layers": 13, "attention_bias": True},
    {"model_type": "mimo_v2_flash", **MIMO, "layer_types": [NEAR] * 4},
    {"model_type": "ernie4_5_moe", **ERNIE},
    {
        "model_type": "ernie4_5_moe",
        **ERNIE,
        "num_hidden_layers": 9,
        "moe_layer_interval": 2,
        "moe_layer_end_index": 6,
        "use_bias": True,
    },
    {"model_type": "axk1", **LATENT},
    {"model_type": "axk2", **LATENT, **INDEX},
    {"model_type": "hy_v4", **LATENT, **INDEX},
    {"model_type": "glm4_moe_lite", **LATENT, "mlp_layer_types": ["dense", "sparse"] * 2}
    | {"num_hidden_layers": 4},
    {"model_type": "qwen3_moe", **SIZES, **MIXTURE, "mlp_only_layers": [2]},
    {"model_type": "qwen2", **SIZES, "use_sliding_window": True, "max_window_layers": 2},
    {"model_type": "exaone4", **SIZES, "layer_types": [NEAR, FULL, FULL, NEAR]},
]


@pytest.mark.sweep(every=9)
@pytest.mark.parametrize("config", VARIANTS, ids=lambda config: config["model_type"])
def test_uneven_layers_count_what_transformers_builds(config: dict[str, Any]) -> None:
    built = transformers.AutoConfig.for_model(**config)
    want = count_in_transformers(config)
    for values in (config, built.to_dict()):
        spec = spec_from_config(values, place="here", name="mine")
        assert parameter_count(spec) == want
    kinds = getattr(built, "layer_types", None) or []
    windowed = [kind in (NEAR, "chunked_attention") for kind in kinds]
    if any(windowed):
        assert [is_windowed(spec, layer) for layer in range(num_layers(spec))] == windowed


def elements_in_cache(config: dict[str, Any], tokens: int) -> int:
    """Elements that transformers' own cache holds after a prompt of so many tokens."""
    built = transformers.AutoConfig.for_model(**config)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(built, dtype=torch.float32).eval()
    with torch.no_grad():
        cache = model(torch.arange(tokens)[None] + 3, use_cache=True).past_key_values
    kept = [(layer.keys, layer.values) for layer in cache.layers if layer.keys is not None]
    return sum(one.numel() for pair in kept for one in pair)


KEPT = [VARIANTS[place] for place in (1, 2, 3, 0, 7, 15, 17, 19)]


@pytest.mark.sweep(every=3)
@pytest.mark.parametrize("config", KEPT, ids=lambda config: config["model_type"])
def test_a_token_keeps_what_transformers_cache_keeps(config: dict[str, Any]) -> None:
    spec = spec_from_config(config, place="here", name="mine")
    per_token = bytes_per_token(spec, element_bytes=1.0)
    assert per_token * 4 == elements_in_cache(config, 4)
    assert kv_cache_bytes(spec, 4, element_bytes=1.0) == per_token * 4
    # Past the window, windowed layers stop growing (theirs keeps one token less until the next).
    windowed = [is_windowed(spec, layer) for layer in range(num_layers(spec))]
    if any(windowed):
        assert kv_cache_bytes(spec, 64, element_bytes=1.0) < per_token * 64


def test_mixtures_may_stand_between_dense_layers() -> None:
    config = {"model_type": "glm4_moe", **SIZES, **MIXTURE, "n_routed_experts": 4}
    listed = {**config, "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"]}
    spec = spec_from_config(listed, place="here", name="mine")
    assert [is_mixture(spec, layer) for layer in range(4)] == [True, False, True, True]
    one = 3 * 64 * 40
    assert parameter_count(spec) - active_parameter_count(spec) == 3 * 2 * one


LONGCAT = {
    # meituan-longcat/LongCat-Flash-Chat
    "model_type": "longcat_flash",
    "vocab_size": 131072,
    "hidden_size": 6144,
    "num_layers": 28,
    "num_attention_heads": 64,
    "ffn_hidden_size": 12288,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_topk": 12,
    "n_routed_experts": 512,
    "zero_expert_num": 256,
    "expert_ffn_hidden_size": 2048,
}


def test_a_layer_of_two_attentions_counts_what_its_paper_prints() -> None:
    # transformers also builds weights for the experts that have none; arXiv 2509.01322: 560
    # billion, 27 of them active in the mean.
    spec = spec_from_config(LONGCAT, place="here", name="LongCat-Flash")
    assert parameter_count(spec) / 1e9 == pytest.approx(560, abs=1)
    assert active_parameter_count(spec) / 1e9 == pytest.approx(27, abs=1)
    assert bytes_per_token(spec) == 2 * 28 * (512 + 64) * 2


def test_layers_of_other_sizes_than_their_kind_are_refused() -> None:
    config = {"model_type": "laguna", **LAGUNA, "num_attention_heads_per_layer": [4, 8, 4, 4]}
    with pytest.raises(InputError, match="must be one number for all windowed layers"):
        spec_from_config(config, place="here", name="mine")
