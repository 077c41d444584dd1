"""Configurations of very small models, written as config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCAB = 97
_SHARED = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _SHARED | {"model_type": "llama", "intermediate_size": 48},
    "llama-tied": _SHARED
    | {"model_type": "llama", "intermediate_size": 48, "tie_word_embeddings": True},
    "qwen3": _SHARED
    | {"model_type": "qwen3", "intermediate_size": 48, "head_dim": 8, "tie_word_embeddings": True},
    "mixtral": _SHARED
    | {
        "model_type": "mixtral",
        "intermediate_size": 24,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "qwen3-moe": _SHARED
    | {
        "model_type": "qwen3_moe",
        "intermediate_size": 48,
        "moe_intermediate_size": 24,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
    },
    "gpt2": {
        "model_type": "gpt2",
        "vocab_size": VOCAB,
        "n_embd": 32,
        "n_layer": 4,
        "n_head": 4,
        "n_positions": 64,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
    },
}
"""An odd vocabulary: ranks that share it have unequal parts."""


def write_config(folder: Path, name: str) -> Path:
    """The path of a folder with that model's config.json."""
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps(CONFIGS[name]))
    return place
