"""A model with swapped layers computes what its dequantised weights say, and holds them once."""

from __future__ import annotations

import copy
import weakref
from inspect import signature
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    DynamicCache,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from ridgeline.errors import InputError
from ridgeline.kernels import linear_int8
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.weights import FrozenLinear, shrink, weight_rows

IDS = torch.arange(24).view(2, 12) * 7 % 97
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def llama(tied: bool) -> Any:
    return LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, tie_word_embeddings=tied))


def gemma(tied: bool) -> Any:
    return Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, head_dim=16, tie_word_embeddings=tied))


def gpt2(tied: bool) -> Any:
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 97}
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, **ids, tie_word_embeddings=tied))


def built(family: Any, tied: bool, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(1)
    return family(tied).to(dtype).eval().requires_grad_(requires_grad=False)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


def config(weights: Any) -> EngineConfig:
    return EngineConfig(model="tiny", weights=weights, group_size=32)


families = pytest.mark.parametrize("family", [llama, gemma, gpt2])
tied_or_not = pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])


@families
@tied_or_not
def test_packed_layers_compute_what_the_model_computed(family: Any, tied: bool) -> None:
    model = built(family, tied)
    expected = logits(model)
    shrink(model, config("model"))
    assert not any(type(module) is nn.Linear for module in model.modules())
    assert (logits(model) - expected).abs().max() <= 2e-6 * expected.abs().max()


@pytest.mark.sweep(every=4)
@families
@tied_or_not
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_quantised_layers_compute_what_their_dequantised_weights_say(
    family: Any, tied: bool, weights: str
) -> None:
    model = built(family, tied)
    wide = copy.deepcopy(model)
    shrink(model, config(weights))
    if tied:  # the head is rounded, the embedding is not
        wide.lm_head.weight = nn.Parameter(wide.lm_head.weight.clone())
    for name, layer in model.named_modules():
        if isinstance(layer, FrozenLinear):
            old = wide.get_submodule(name)
            weight = layer.dequantised()
            old.weight.data = weight if type(old) is nn.Linear else weight.T.contiguous()
    expected = logits(wide)
    assert (logits(model) - expected).abs().max() <= 4e-6 * expected.abs().max()


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("weights", ["model", "int8", "int4"])
def test_narrow_dtypes_stay_narrow(dtype: torch.dtype, weights: str) -> None:
    model = built(llama, tied=False, dtype=dtype)
    shrink(model, config(weights))
    assert logits(model).dtype == dtype


def test_decoding_one_by_one_gives_the_prefills_logits() -> None:
    model = built(llama, tied=False)
    shrink(model, config("int8"))
    whole = logits(model)
    with torch.no_grad():
        # One cache is kept and filled: its name as an argument changed in transformers 5.24.
        name = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"
        cache = DynamicCache(config=model.config)
        for at in range(IDS.shape[1]):
            step = model(IDS[:, at : at + 1], **{name: cache}, use_cache=True)
            assert torch.allclose(step.logits[:, 0], whole[:, at], atol=1e-5)


@tied_or_not
def test_each_weight_is_stored_once_and_counted_once(tied: bool) -> None:
    model = built(llama, tied)
    before = sum(parameter.nbytes for parameter in model.parameters())
    rows = shrink(model, config("model"))
    vocab, hidden = SIZES["vocab_size"], SIZES["hidden_size"]
    filling = (-vocab % 32) * hidden * 4  # the head's last panel
    small = sum(buffer.nbytes for buffer in model.model.rotary_emb.buffers())
    assert sum(row.bytes for row in rows) == before + filling + small
    assert rows == weight_rows(model)


def test_int8_takes_a_quarter_of_fp32_and_int4_an_eighth() -> None:
    sizes = {}
    for weights in ("model", "int8", "int4"):
        rows = shrink(built(llama, tied=False), config(weights))
        sizes[weights] = next(row.bytes for row in rows if "not packed" not in row.what)
    assert sizes["int8"] == pytest.approx(sizes["model"] / 4, rel=0.1)
    assert sizes["int4"] == pytest.approx(sizes["model"] / 8 * (1 + 2 / 16), rel=0.2)


def test_old_weights_are_freed_before_the_next_layer_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = built(llama, tied=False)
    olds = [weakref.ref(p) for n, p in model.named_parameters() if n.endswith("proj.weight")]
    alive = []
    quantise = linear_int8.quantise

    def watched(
        weight: torch.Tensor, peaks: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        alive.append(sum(old() is not None for old in olds))
        return quantise(weight, peaks)

    monkeypatch.setattr(linear_int8, "quantise", watched)
    shrink(model, config("int8"))
    # The head is the first that is replaced.
    assert alive == [len(olds), *range(len(olds), 0, -1)]


def test_groups_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="--group-size"):
        shrink(built(llama, tied=False), EngineConfig(model="tiny", weights="int4", group_size=128))


def test_fp8_is_refused_on_a_cpu() -> None:
    with pytest.raises(InputError, match="--weights int8"):
        shrink(built(llama, tied=False), config("fp8"))


@pytest.mark.slow
def test_the_compiler_takes_a_shrunk_model() -> None:
    model = built(llama, tied=True)
    shrink(model, config("int4"))
    expected = logits(model)
    compiled = torch.compile(model, backend="aot_eager")
    assert torch.allclose(logits(compiled), expected, atol=1e-5)
