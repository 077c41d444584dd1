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
}
NOT_FITTING: dict[str, dict[str, Any]] = {
    "gpt_neo": {
        "hidden_size": 32,
        "num_layers": 2,
        "attention_types": [[["global", "local"], 1]],
        "num_heads": 4,
        "vocab_size": VOCAB,
        "max_position_embeddings": 128,
    },
    "gptj": {**_LEARNED, "rotary_dim": 4},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": VOCAB},
    "falcon": {**_SIZES, "alibi": True},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "vocab_size": VOCAB, "max_seq_len": 128},
    "stablelm": _GROUPED,
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": VOCAB, "state_size": 4},
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
