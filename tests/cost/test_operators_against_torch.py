"""Our FLOPs against those that PyTorch counts while a real model runs forward and backward.

PyTorch counts matrix products. Its plain attention computes all pairs, masked or not, and keeps
the scores, so that its backward has four products for the fused kernel's five.
"""

from __future__ import annotations

from typing import Any

import pytest

from ridgeline.cost.operators import Phase, model_operators
from ridgeline.models import ModelSpec, spec_from_config

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama", "hidden_size": 128, "intermediate_size": 352,
        "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2,
        "vocab_size": 1000, "max_position_embeddings": 256, "tie_word_embeddings": False,
    },
    "qwen3": {
        "model_type": "qwen3", "hidden_size": 128, "intermediate_size": 256, "head_dim": 32,
        "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
        "vocab_size": 1000, "max_position_embeddings": 256, "tie_word_embeddings": True,
    },
    "gpt2": {
        "model_type": "gpt2", "n_embd": 128, "n_layer": 2, "n_head": 4, "vocab_size": 1000,
        "n_positions": 256, "n_inner": None,
    },
    "gpt_neox": {
        "model_type": "gpt_neox", "hidden_size": 128, "intermediate_size": 512,
        "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000,
        "max_position_embeddings": 256, "tie_word_embeddings": False,
    },
    "mixtral": {
        "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 1000,
        "max_position_embeddings": 256, "tie_word_embeddings": False,
    },
    "deepseek_v3": {
        "model_type": "deepseek_v3", "hidden_size": 64, "intermediate_size": 160,
        "moe_intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 4, "n_shared_experts": 1, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
        "kv_lora_rank": 32, "q_lora_rank": 48, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32,
        "v_head_dim": 32, "vocab_size": 1000, "max_position_embeddings": 256,
        "tie_word_embeddings": False,
    },
}  # fmt: skip
BATCH, SEQ = 3, 64


def counted(config: dict[str, Any], *, train: bool) -> float:
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {key: value for key, value in config.items() if key != "model_type"}
    shape = AutoConfig.for_model(config["model_type"], **values)
    # Grouped products of experts are not counted; eager experts are products one by one.
    model = AutoModelForCausalLM.from_config(
        shape, attn_implementation="eager", experts_implementation="eager"
    )
    tokens = torch.zeros(BATCH, SEQ, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        out = model(tokens, use_cache=False)
        if train:
            out.logits.sum().backward()
    return float(counter.get_total_flops())


def ours(spec: ModelSpec, phase: Phase) -> float:
    """As PyTorch executes it without fused kernels."""
    total = 0.0
    for one in model_operators(spec, SEQ, BATCH, phase=phase):
        flops = one.flops * one.count
        if one.kind == "attention":
            flops *= SEQ * SEQ / (SEQ * (SEQ + 1) // 2)
            flops *= 4 / 5 if one.direction == "backward" else 1
        if one.name == "head" and phase == "prefill":
            flops *= SEQ  # transformers computes the logits of every token
        total += 0.0 if one.kind == "elementwise" else flops
    return total


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("name", sorted(CONFIGS))
@pytest.mark.parametrize("phase", ["prefill", "train"])
def test_flops_are_those_that_pytorch_counts(name: str, phase: Phase) -> None:
    spec = spec_from_config(CONFIGS[name], place="test", name=name)
    assert ours(spec, phase) == pytest.approx(counted(CONFIGS[name], train=phase == "train"))
