"""The smallest model of a family: a config with every width and count cut down.

What a family's forward does is the same at every width, so a tiny one shows it in milliseconds.
"""

from __future__ import annotations

import copy
from typing import Any

from transformers import PretrainedConfig

NUM_LAYERS = 4
_WIDTHS = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 64,
    "ffn_dim": 64,
    "n_inner": 64,
    "word_embed_proj_dim": 64,
    "num_attention_heads": 4,
    "head_dim": 16,
    "rotary_dim": 8,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}


def tiny_config(config: PretrainedConfig) -> PretrainedConfig:
    """A copy of the config with small sizes; all else is as it was."""
    small = copy.deepcopy(config)
    layers = config.num_hidden_layers
    # Properties that follow from other sizes (Falcon's head_dim) cannot be set, and need not be.
    settable = {
        name for name in _WIDTHS if not isinstance(getattr(type(config), name, None), property)
    }
    for name, value in config.to_dict().items():
        if isinstance(value, list) and len(value) == layers:
            setattr(small, name, value[:NUM_LAYERS])
    for name, width in _WIDTHS.items():
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0 and name in settable:
            setattr(small, name, min(value, width))
    if hasattr(config, "qk_rope_head_dim"):
        small.head_dim = small.qk_rope_head_dim
    heads = getattr(config, "num_key_value_heads", None)
    if isinstance(heads, int):
        grouped = heads < config.num_attention_heads
        small.num_key_value_heads = min(heads, 2) if grouped else small.num_attention_heads
    small.num_hidden_layers = NUM_LAYERS
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(small, name, None)
    rope = getattr(config, "rope_parameters", None)
    if rope and any(isinstance(value, list) for value in rope.values()):
        # Factors per frequency: as many as half a head. All stages rotate alike whatever they are.
        small.rope_parameters = _plain_rotation(rope)
    small._attn_implementation = "eager"
    return small


def _plain_rotation(rope: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in rope.items() if not isinstance(value, list)}
    return kept | {"rope_type": "default"}
