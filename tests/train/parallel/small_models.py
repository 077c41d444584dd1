"""Tiny models, recipes and batches of the tests of parallelism, the same on every rank."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from ridgeline.records.layout import Layout
from ridgeline.records.recipe import Recipe, RecipeData, RecipeModel, RecipeOptimizer
from ridgeline.train.batch import IGNORED, Batch

SEQ = 24
_SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
_GROUPED = {"intermediate_size": 48, "num_key_value_heads": 2}
_FAMILY = {
    "llama": _GROUPED,
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "mixtral": _GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": _GROUPED
    | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8},
}


def make_model(kind: str = "llama", **changes: Any) -> PreTrainedModel:
    """A model with the same random weights on every rank."""
    config = AutoConfig.for_model(kind, **(_SIZES | _FAMILY[kind] | changes))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
            if "embed" in name or "wte" in name:
                parameter.mul_(3.0)
    return model


def make_recipe(**layout: Any) -> Recipe:
    """A recipe with this layout, fp32, nothing compiled."""
    return Recipe(
        model=RecipeModel(config="tiny"),
        data=RecipeData(seq=SEQ),
        layout=Layout(**({"precision": "fp32", "compiled": False} | layout)),
        optimizer=RecipeOptimizer(learning_rate=0.1, final_learning_rate=0.1),
    )


def make_batch(step: int, place: int, *, documents: bool = False, rows: int = 1) -> Batch:
    """The sequences `place` of a step, some labels ignored."""
    generator = torch.Generator().manual_seed(1000 * step + place)
    # A third of the vocabulary at most, small numbers far more often: there is something to learn.
    tokens = torch.randint(5, (2, rows, SEQ + 1), generator=generator).prod(dim=0)
    labels = tokens[:, 1:].clone()
    labels[:, 5 + place % 3] = IGNORED
    positions = torch.arange(SEQ).expand(rows, -1).clone()
    if documents:
        cut = 7 + place % 5
        positions[:, cut:] -= cut
        positions[:, cut + 6 :] -= 6
    return Batch(input_ids=tokens[:, :-1].clone(), labels=labels, position_ids=positions)
