"""What context and expert parallelism cannot do is said in one line, before training begins."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ridgeline.errors import InputError
from ridgeline.records.layout import Layout
from ridgeline.train.parallel.context import use_ring_attention
from ridgeline.train.parallel.experts import spread_experts


def _empty(kind: str, **changes):
    with torch.device("meta"):
        config = AutoConfig.for_model(kind, num_hidden_layers=2, **changes)
        return AutoModelForCausalLM.from_config(config)


def _ranks(**layout):
    made = Layout(**layout)
    return SimpleNamespace(
        layout=made, size=lambda name: made.cp if name == "cp" else made.dp * made.cp
    )


@pytest.mark.parametrize(
    ("kind", "changes", "what"),
    [
        ("mistral", {"sliding_window": 128}, "a sliding window"),
        ("gpt_oss", {"layer_types": ["full_attention"] * 2}, "attention sinks"),
        ("gemma2", {"layer_types": ["full_attention"] * 2}, "capped attention scores"),
        ("gemma3_text", {"layer_types": ["full_attention", "sliding_attention"]}, "a sliding"),
        ("llama", {"attention_dropout": 0.1}, "dropout of attention weights"),
    ],
)
def test_attention_that_the_ring_does_not_compute_is_refused(kind, changes, what):
    with pytest.raises(InputError, match=rf"layout\.cp: .* has {what}.*use layout\.cp = 1"):
        use_ring_attention(_empty(kind, **changes), _ranks(cp=2))


@pytest.mark.parametrize(
    ("kind", "layout", "what"),
    [
        ("llama", {"dp": 2, "ep": 2, "global_batch": 2}, "LlamaForCausalLM has no experts"),
        ("mixtral", {"dp": 2, "ep": 4, "global_batch": 2}, "ep 4 does not divide dp x cp = 2"),
        ("mixtral", {"dp": 2, "tp": 2, "sp": True, "ep": 2, "global_batch": 2}, r"layout\.sp"),
        ("mixtral", {"dp": 2, "tp": 2, "etp": 2, "ep": 2, "global_batch": 2}, r"layout\.etp"),
    ],
)
def test_layouts_whose_experts_cannot_be_spread_are_refused(kind, layout, what):
    with pytest.raises(InputError, match=what):
        spread_experts(_empty(kind), _ranks(**layout))


def test_nothing_changes_on_one_rank():
    model = _empty("mixtral")
    before = {name: id(parameter) for name, parameter in model.named_parameters()}
    spread_experts(model, _ranks())
    use_ring_attention(model, _ranks())
    assert before == {name: id(parameter) for name, parameter in model.named_parameters()}
    assert model.config._attn_implementation == "sdpa"
