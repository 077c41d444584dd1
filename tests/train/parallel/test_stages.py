"""Cutting models into stages: which families can be, and what each stage keeps."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.train.parallel.small_models import make_model
from transformers import AutoConfig, AutoModelForCausalLM

from ridgeline.errors import InputError
from ridgeline.records.layout import Layout
from ridgeline.train.parallel.pipeline import check_schedule, schedule_class
from ridgeline.train.parallel.stages import (
    Elsewhere,
    check_family,
    rank_of_stage,
    stages_of_rank,
    take_stage,
)

# Each does something else around its layers: scaled embeddings (gemma), learned positions (gpt2,
# opt), a norm behind the embedding (bloom), windows by layer index (gemma3, gpt_oss),
# layers that return tuples (mpt, gptj), a scaled head (cohere), experts (mixtral, deepseek_v3).
CAN = [
    "llama",
    "gpt2",
    "opt",
    "gpt_neox",
    "bloom",
    "mpt",
    "gptj",
    "falcon",
    "gemma",
    "gemma2",
    "gemma3_text",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "mistral",
    "mixtral",
    "deepseek_v3",
    "gpt_oss",
    "phi3",
    "cohere",
    "olmo2",
]


def _empty(kind: str, **changes):
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **changes))


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize("kind", CAN)
def test_the_stages_of_a_family_make_up_the_whole(kind):
    around = check_family(_empty(kind, num_hidden_layers=4), 3)
    assert "emb" in around.before[0] or "wte" in around.before[0]
    assert "norm" in around.behind[-1] or around.behind == ("ln_f",)


@pytest.mark.parametrize("kind", ["qwen2", "gemma3_text", "llama"])
@pytest.mark.parametrize("layers", [2, 3])
def test_a_model_of_few_layers_can_be_cut(kind, layers):
    around = check_family(_empty(kind, num_hidden_layers=layers), 2)
    assert around.behind == ("norm",)


def test_a_family_whose_layers_share_more_than_the_hidden_state_is_refused():
    with pytest.raises(InputError, match=r"XGLMForCausalLM.*something else.*layout\.pp = 1"):
        check_family(_empty("xglm", num_layers=4), 2)


def test_a_config_that_scales_embeddings_outside_of_them_is_refused():
    check_family(_empty("granite", num_hidden_layers=4), 2)
    with pytest.raises(InputError, match="GraniteForCausalLM"):
        check_family(_empty("granite", num_hidden_layers=4, embedding_multiplier=12.0), 2)


@pytest.mark.parametrize("tied", [False, True])
def test_stages_keep_the_names_of_the_whole_and_each_weight_once(tied):
    model = make_model(tie_word_embeddings=tied)
    around = check_family(model, 4)
    splits = [range(2), range(2, 3), range(3, 6), range(6, 8)]
    whole = dict(model.named_parameters())
    seen: list[str] = []
    for index in range(4):
        stage = take_stage(copy.deepcopy(model), splits, index, around)
        own = dict(stage.named_parameters())
        for name, parameter in own.items():
            assert torch.equal(parameter, whole[name])
        place = stage.stage_place
        assert place.layers == splits[index]
        seen += [name for name in own if name != place.repeats]
        assert isinstance(stage.model.layers[5], Elsewhere) == (5 not in splits[index])
        assert bool(place.repeats) == (tied and index == 3)
        assert (
            stage.get_parameter("model.embed_tokens.weight").shape == (64, 32)
            if (index == 0 or place.repeats)
            else "model.embed_tokens.weight" not in own
        )
    assert sorted(seen) == sorted(whole)


def test_a_tied_last_stage_has_one_matrix_under_both_names():
    model = make_model(tie_word_embeddings=True)
    around = check_family(model, 2)
    last = take_stage(copy.deepcopy(model), [range(4), range(4, 8)], 1, around)
    assert last.lm_head.weight is last.model.embed_tokens.weight
    assert last.stage_place.repeats == "model.embed_tokens.weight"


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zero-bubble", "gpipe"])
@pytest.mark.parametrize("vpp", [1, 2, 3])
def test_every_stage_is_on_the_rank_that_holds_it(schedule, vpp):
    layout = Layout(pp=4, vpp=vpp, schedule=schedule)
    held = {stage: rank for rank in range(4) for stage in stages_of_rank(layout, rank)}
    assert held == {stage: rank_of_stage(layout, stage) for stage in range(4 * vpp)}


def test_too_few_micro_batches_are_refused_before_torch_stumbles():
    with pytest.raises(InputError, match=r"needs at least pp = 4 micro-batches and .* gives 2"):
        check_schedule(Layout(pp=4, global_batch=2))
    with pytest.raises(InputError, match="5 do not divide into 2 rounds"):
        check_schedule(Layout(pp=2, vpp=2, schedule="interleaved", global_batch=5))
    check_schedule(Layout(pp=4, vpp=2, schedule="gpipe", global_batch=2))


def test_the_schedule_follows_from_layout_and_chunks():
    names = {
        (name, vpp): schedule_class(Layout(pp=2, vpp=vpp, schedule=name)).__name__
        for name in ("gpipe", "1f1b", "zero-bubble")
        for vpp in (1, 2, 3)
    }
    assert names == {
        ("gpipe", 1): "ScheduleGPipe",
        ("gpipe", 2): "ScheduleLoopedBFS",
        ("gpipe", 3): "ScheduleLoopedBFS",
        ("1f1b", 1): "Schedule1F1B",
        ("1f1b", 2): "ScheduleInterleaved1F1B",
        ("1f1b", 3): "ScheduleInterleaved1F1B",
        ("zero-bubble", 1): "ScheduleInterleavedZeroBubble",
        ("zero-bubble", 2): "ScheduleZBVZeroBubble",
        ("zero-bubble", 3): "ScheduleInterleavedZeroBubble",
    }
