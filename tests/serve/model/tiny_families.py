"""One tiny configuration of each family, randomly initialised; with positions that matter."""

from __future__ import annotations

from typing import Any

import torch

VOCAB = 96
WINDOW = 12
_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "vocab_size": VOCAB,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2}
_EXPERTS = {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_WINDOWS = {**_GROUPED, "head_dim": 8, "sliding_window": WINDOW}
_LEARNED = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": VOCAB}

OWN_ATTENTION: dict[str, dict[str, Any]] = {
    "gpt_neo": {
        "hidden_size": 32,
        "num_layers": 2,
        "attention_types": [[["global", "local"], 1]],
        "window_size": WINDOW,
        "num_heads": 4,
        "vocab_size": VOCAB,
        "max_position_embeddings": 128,
    },
    "gptj": {**_LEARNED, "rotary_dim": 4},
    "codegen": {**_LEARNED, "n_ctx": 128, "rotary_dim": 4},
    "falcon": {**_SIZES, "num_kv_heads": 2, "new_decoder_architecture": True},
    "bloom": {"hidden_size": 48, "n_layer": 2, "n_head": 6, "vocab_size": VOCAB},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "vocab_size": VOCAB, "max_seq_len": 128},
}
"""Families that do not pass through transformers' interface."""
FITTING: dict[str, dict[str, Any]] = {
    "llama": _GROUPED,
    "mistral": {**_GROUPED, "sliding_window": WINDOW},
    "mixtral": {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": _GROUPED,
    "qwen3": {**_GROUPED, "head_dim": 8},
    "qwen2_moe": {**_EXPERTS, "shared_expert_intermediate_size": 24},
    "qwen3_moe": {**_EXPERTS, "head_dim": 8},
    "gemma": {**_GROUPED, "head_dim": 8},
    "gemma2": {**_WINDOWS, "query_pre_attn_scalar": 8},
    "gemma3_text": {**_WINDOWS, "query_pre_attn_scalar": 8},
    "phi": _GROUPED,
    "phi3": _GROUPED,
    "gpt2": _LEARNED,
    "gpt_neox": _SIZES,
    "opt": {**_SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "gpt_oss": {**_WINDOWS, "num_local_experts": 4, "num_experts_per_tok": 2},
    "olmo2": _GROUPED,
    "granite": _GROUPED,
    "starcoder2": _GROUPED,
    "cohere": _GROUPED,
    "smollm3": _GROUPED,
    "glm4": {**_GROUPED, "head_dim": 8},
    **OWN_ATTENTION,
}
_MIXED = {**_GROUPED, "num_hidden_layers": 4}
_DELTA = {
    **_MIXED,
    "head_dim": 8,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_STATE_SPACE = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
}
_STATES_ALONE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "vocab_size": VOCAB,
    "state_size": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LATENT = {
    **_EXPERTS,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
}
WITH_STATES: dict[str, dict[str, Any]] = {
    "lfm2": {**_MIXED, "layer_types": ["conv", "conv", "full_attention", "conv"]},
    "qwen3_next": {
        **_EXPERTS,
        **_DELTA,
        "shared_expert_intermediate_size": 24,
    },
    "qwen3_5_text": _DELTA,
    "olmo_hybrid": _DELTA,
    "granitemoehybrid": {
        **_MIXED,
        **_STATE_SPACE,
        "layer_types": ["mamba", "mamba", "attention", "mamba"],
    },
    "bamba": {**_MIXED, **_STATE_SPACE, "attn_layer_indices": [2]},
    "jamba": {
        **_MIXED,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "num_experts": 4,
        "mamba_d_state": 16,
        "mamba_dt_rank": 4,
    },
    "falcon_h1": {**_MIXED, **_STATE_SPACE, "mamba_d_ssm": 64},
    "mamba": _STATES_ALONE,
    "mamba2": {**_STATES_ALONE, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8},
    "nemotron_h": {
        **_GROUPED,
        "layers_block_type": ["mamba", "mlp", "attention", "mamba"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "n_groups": 1,
        "ssm_state_size": 16,
        "chunk_size": 8,
    },
}
"""Some or all of their layers keep a state of each sequence."""
FITTING |= {
    **WITH_STATES,
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "glm4_moe_lite": _LATENT,
    "gemma3n_text": {
        **_WINDOWS,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": VOCAB,
        "laurel_rank": 4,
    },
    "hunyuan_v1_moe": {**_GROUPED, "head_dim": 8, "num_experts": 4, "moe_topk": 2},
}
_INDEX = {"index_head_dim": 8, "index_n_heads": 2}
NOT_FITTING: dict[str, dict[str, Any]] = {
    "deepseek_v32": {
        **_SIZES,
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 12,
        "index_topk": 64,
        **_INDEX,
    },
    "minimax_m3_vl_text": {
        **_EXPERTS,
        "head_dim": 8,
        "num_local_experts": 4,
        "shared_intermediate_size": 24,
        "layer_types": ["full_attention", "minimax_m3_sparse"],
        **_INDEX,
    },
    "minimax": {**_EXPERTS, "head_dim": 8, "num_local_experts": 4},
    "xmod": _SIZES,
    "stablelm": _GROUPED,
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 96},
}


def tiny(family: str, dtype: torch.dtype = torch.float32, seed: int = 0, **changes: Any) -> Any:
    """A model in evaluation; its weights are larger than usual, so that attention is not flat."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    sizes = {**(FITTING.get(family) or NOT_FITTING[family]), **changes}
    config = AutoConfig.for_model(family, **sizes)
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    torch.manual_seed(seed)
    model = kind.from_config(config, dtype=dtype).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.mul_(6.0)
    return model
