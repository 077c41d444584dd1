"""Every row of `hybrids.toml` counts what transformers builds, whichever way its keys stand."""

from __future__ import annotations

from typing import Any

import pytest
from tests.models.test_counts import count_in_transformers

from ridgeline.models.config import spec_from_config
from ridgeline.models.counts import parameter_count
from ridgeline.models.families.hybrids import READERS
from ridgeline.models.spec import num_attention_layers, num_state_layers

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 500,
    "pad_token_id": 0,
    "max_position_embeddings": 512,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "shared_intermediate_size": 48,
}
SPACE = {"mamba_n_heads": 8, "mamba_d_state": 16}
DELTA = {
    "num_hidden_layers": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
    "linear_conv_kernel_dim": 3,
}
LATENT = {"kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 20}
MIXED = ["linear_attention", "full_attention", "linear_attention"]
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "qwen3_next": [DELTA, {**DELTA, "mlp_only_layers": [0, 5], "attention_bias": True}],
    "qwen3_5_text": [DELTA, {**DELTA, "tie_word_embeddings": True}],
    "qwen3_5_moe_text": [DELTA],
    "olmo_hybrid": [{"num_hidden_layers": 8}, {**DELTA, "attention_bias": True}],
    "granitemoehybrid": [
        {**SPACE, "num_hidden_layers": 3, "layer_types": MIXED, "num_local_experts": 4},
        {**SPACE, "num_hidden_layers": 2, "num_local_experts": 0, "mamba_proj_bias": True},
    ],
    "bamba": [
        {**SPACE, "num_hidden_layers": 4, "attn_layer_indices": [1, 3], "mlp_bias": True},
        {**SPACE, "num_hidden_layers": 2, "mamba_conv_bias": False, "mamba_n_groups": 2},
    ],
    "falcon_h1": [
        {**SPACE, "num_hidden_layers": 2, "mamba_d_ssm": 80},
        {**SPACE, "num_hidden_layers": 2, "mamba_d_ssm": None, "mamba_rms_norm": True},
        {**SPACE, "num_hidden_layers": 2, "projectors_bias": True, "attention_bias": True},
    ],
    "nemotron_h": [
        {"hybrid_override_pattern": "ME*-M", "mamba_num_heads": 4, "mamba_head_dim": 12},
        {"layers_block_type": ["linear_attention", "mlp"], "use_bias": True, "mlp_bias": True},
    ],
    "mamba2": [
        {"num_hidden_layers": 2, "num_heads": 8, "head_dim": 16, "state_size": 12, "n_groups": 2},
        {"num_hidden_layers": 2, "num_heads": 8, "head_dim": 16, "use_conv_bias": False},
    ],
    "jamba": [
        {"num_hidden_layers": 8, "attn_layer_period": 4, "attn_layer_offset": 2},
        {"num_hidden_layers": 4, "expert_layer_period": 3, "expert_layer_offset": 0},
        {"num_hidden_layers": 4, "num_experts": 1, "mamba_proj_bias": True},
    ],
    "mamba": [{"num_hidden_layers": 2}, {"num_hidden_layers": 2, "time_step_rank": 7}],
    "falcon_mamba": [{"num_hidden_layers": 2, "use_bias": True, "tie_word_embeddings": False}],
    "lfm2": [
        {
            "num_hidden_layers": 4,
            "full_attn_idxs": [1, 3],
            "conv_L_cache": 3,
            "block_multiple_of": 8,
        },
        {"num_hidden_layers": 2, "full_attn_idxs": [1], "conv_L_cache": 4, "conv_bias": True},
        {"num_hidden_layers": 1, "full_attn_idxs": [], "conv_L_cache": 3, "block_ff_dim": 50},
    ],
    "lfm2_moe": [
        {
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            "conv_L_cache": 3,
            "num_dense_layers": 1,
        }
    ],
    "lfm3": [
        {
            "num_hidden_layers": 4,
            "layer_types": ["conv", "sliding_attention", "full_attention", "conv"],
            "attention_bias": True,
        },
        {"num_hidden_layers": 2, "conv_bias": True, "layer_types": ["conv", "full_attention"]},
    ],
    "bailing_hybrid": [
        {**LATENT, "num_hidden_layers": 7, "head_dim": 12, "n_group": 1, "topk_group": 1},
        {
            **LATENT,
            "num_hidden_layers": 3,
            "layer_types": MIXED,
            "first_k_dense_replace": 0,
            "n_group": 1,
            "topk_group": 1,
        },
    ],
    "recurrent_gemma": [
        {"num_hidden_layers": 5, "attention_bias": True},
        {"num_hidden_layers": 3, "lru_width": 80, "block_types": ["attention", "recurrent"]},
    ],
    "rwkv": [
        {"num_hidden_layers": 2},
        {"num_hidden_layers": 2, "attention_hidden_size": 80, "tie_word_embeddings": True},
    ],
    "minimax": [{"num_hidden_layers": 3, "layer_types": MIXED, "head_dim": 20}],
    "kimi_linear": [
        {**LATENT, "num_hidden_layers": 5, "linear_head_dim": 12, "linear_num_heads": 3},
        {
            **LATENT,
            "num_hidden_layers": 3,
            "linear_attn_config": {
                "head_dim": 8,
                "num_heads": 5,
                "short_conv_kernel_size": 3,
                "full_attn_layers": [3],
                "kda_layers": [1, 2],
            },
        },
    ],
}


def keys_of(family: str, changes: dict[str, Any]) -> dict[str, Any]:
    """A small configuration of this family, as transformers writes it."""
    base = transformers.AutoConfig.for_model(family)
    sizes = {name: size for name, size in SIZES.items() if hasattr(base, name)}
    if family in ("mamba", "mamba2", "falcon_mamba"):
        sizes.pop("intermediate_size", None)  # theirs follows from the expansion
    if family in ("lfm2", "lfm2_moe"):
        sizes["conv_L_cache"] = 3
    if family == "kimi_linear":
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    return {"model_type": family, **sizes, **changes}


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("family", sorted(READERS))
def test_a_hybrid_counts_what_transformers_builds(family: str) -> None:
    for changes in VARIANTS[family]:
        keys = keys_of(family, changes)
        config = transformers.AutoConfig.for_model(**keys)
        want = count_in_transformers(keys)
        written = spec_from_config(config.to_dict(), place="here", name=family)
        assert parameter_count(written) == want, changes
        # What a file leaves out has the default that the installed class has.
        bare = {**keys, **{k: v for k, v in config.to_diff_dict().items() if v is not None}}
        assert parameter_count(spec_from_config(bare, place="here", name=family)) == want, changes


@pytest.mark.parametrize("family", ["deepseek_v32", "glm_moe_dsa"])
def test_sparse_attention_counts_its_chooser(family: str) -> None:
    sizes = {**LATENT, "q_lora_rank": 24, "num_hidden_layers": 3, "index_head_dim": 16}
    experts = {"n_routed_experts": 4, "moe_intermediate_size": 24, "first_k_dense_replace": 1}
    keys = {**keys_of(family, {}), **sizes, **experts, "n_group": 1, "topk_group": 1}
    keys["num_key_value_heads"] = keys["num_attention_heads"]
    config = transformers.AutoConfig.for_model(**keys)
    spec = spec_from_config(config.to_dict(), place="here", name=family)
    assert parameter_count(spec) == count_in_transformers(keys)
    assert spec.indexer is not None
    assert spec.indexer.top_k == 2048


def test_layers_are_counted_by_what_they_have() -> None:
    spec = spec_from_config(
        keys_of("nemotron_h", {"hybrid_override_pattern": "ME*-M"}), place="here", name="mine"
    )
    assert (spec.layers, num_attention_layers(spec), num_state_layers(spec)) == (5, 1, 2)
    with pytest.raises(Exception, match="hybrid_override_pattern names 'X'; known: full_attention"):
        spec_from_config(
            keys_of("nemotron_h", {"hybrid_override_pattern": "MX"}), place="here", name="mine"
        )
