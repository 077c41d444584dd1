"""Which families the suite asks about; how large they are, says `bench/tiny_families.toml`."""

from __future__ import annotations

from typing import Any

import torch
from bench import tiny_families
from bench.tiny_families import SIZES

VOCAB = SIZES["every"]["vocab_size"]
WINDOW = SIZES["every"]["sliding_window"]
OWN_ATTENTION = ("gpt_neo", "gptj", "codegen", "falcon", "bloom", "mpt")
"""Families that do not pass through transformers' interface."""
WITH_STATES = (
    "lfm2",
    "qwen3_next",
    "qwen3_5_text",
    "olmo_hybrid",
    "granitemoehybrid",
    "bamba",
    "jamba",
    "falcon_h1",
    "mamba",
    "mamba2",
    "nemotron_h",
)
"""Some or all of their layers keep a state of each sequence."""
FITTING = (
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen2_moe",
    "qwen3_moe",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi",
    "phi3",
    "gpt2",
    "gpt_neox",
    "opt",
    "gpt_oss",
    "olmo2",
    "granite",
    "starcoder2",
    "cohere",
    "smollm3",
    "glm4",
    *OWN_ATTENTION,
    *WITH_STATES,
    "deepseek_v2",
    "deepseek_v3",
    "glm4_moe_lite",
    "gemma3n_text",
    "hunyuan_v1_moe",
    "stablelm",
    "nemotron",
)
NOT_FITTING = ("deepseek_v32", "minimax_m3_vl_text", "minimax", "xmod", "t5")
_HERE: dict[str, dict[str, Any]] = {
    "bloom": {"hidden_size": 48, "n_head": 6},  # slopes of heads that are no power of two
}


def tiny(family: str, dtype: torch.dtype = torch.float32, seed: int = 0, **changes: Any) -> Any:
    """A family's model with random weights, in evaluation."""
    return tiny_families.tiny(family, dtype, seed, **{**_HERE.get(family, {}), **changes})
