"""Attention of transformers' models that they write out, as one kernel: the same, or not taken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertModel,
    Gemma2Config,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    T5Config,
    T5EncoderModel,
)

from ridgeline.kernels.fused_modules import fuse_modules

SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "attn_implementation": "eager",
}  # fmt: skip
MODELS = {
    "llama": (LlamaConfig, {}),
    "windows": (MistralConfig, {"sliding_window": 4}),
    "soft caps and windows": (
        Gemma2Config,
        {"sliding_window": 4, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 5},
    ),
    "sinks": (
        GptOssConfig,
        {"sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
}


def small(name: str, **changes: object) -> nn.Module:
    torch.manual_seed(0)
    config, options = MODELS[name]
    return AutoModelForCausalLM.from_config(config(**{**SMALL, **options, **changes}))


def run(model: nn.Module, **more: object) -> list[torch.Tensor]:
    """Loss, logits and every gradient."""
    tokens = torch.arange(22).view(2, 11) % 61
    model.zero_grad()
    out = model(input_ids=tokens, labels=tokens, **more)
    out.loss.backward()
    return [out.loss.detach(), out.logits.detach(), *(p.grad.clone() for p in model.parameters())]


def attention_nodes(model: nn.Module, **more: object) -> int:
    """How many steps of the backward are ours."""
    tokens = torch.arange(22).view(2, 11) % 61
    loss = model(input_ids=tokens, labels=tokens, **more).loss
    return sum("flash_attention" in type(node).__name__ for node in graph_of(loss))


def graph_of(result: torch.Tensor) -> set[object]:
    """Every step of the backward of a result."""
    pending, seen = [result.grad_fn], set()
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            pending += [one for one, _ in node.next_functions]
    return seen


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if "soft" in n or n == "sinks" else pytest.mark.slow)
        for n in MODELS
    ],
)
def test_a_model_computes_the_same_and_is_put_back(name: str) -> None:
    model = small(name)
    before = run(model)
    found, undo = fuse_modules(model)
    assert found["attentions"] == 1
    assert attention_nodes(model) == 2
    for one, other in zip(run(model), before, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    undo()
    assert attention_nodes(model) == 0


def test_padding_and_weights_to_look_at_are_left_to_the_model() -> None:
    model = small("llama")
    padded = torch.ones(2, 11, dtype=torch.int64)
    padded[0, :3] = 0
    before = run(model, attention_mask=padded)
    _, undo = fuse_modules(model)
    assert attention_nodes(model, attention_mask=padded) == 0
    for one, other in zip(run(model, attention_mask=padded), before, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    out = model(input_ids=torch.arange(5)[None], output_attentions=True)
    assert out.attentions[0].shape == (1, 4, 5, 5)
    undo()


def test_a_model_that_calls_attention_as_one_is_left_alone() -> None:
    model = small("llama", attn_implementation="sdpa")
    found, undo = fuse_modules(model)
    assert "attentions" not in found
    undo()


@pytest.mark.parametrize(
    ("model", "nodes"),
    [
        (lambda: BertModel(BertConfig(**{**SMALL, "hidden_size": 32})), 2),
        (lambda: T5EncoderModel(T5Config(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
                                         vocab_size=64, attn_implementation="eager")), 0),
    ],
    ids=["every token sees every other", "positions add to the scores"],
)  # fmt: skip
def test_encoders_compute_the_same(model: Callable[[], nn.Module], nodes: int) -> None:
    torch.manual_seed(0)
    encoder = model().eval()
    tokens = torch.arange(22).view(2, 11) % 61
    before = encoder(input_ids=tokens)[0]
    _, undo = fuse_modules(encoder)
    after = encoder(input_ids=tokens)[0]
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
    assert sum("flash_attention" in type(one).__name__ for one in graph_of(after)) == nodes
    undo()
