"""Over blocks, packed and in chunks, a family computes what it computes alone, or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.serve.model.tiny_families import FITTING, NOT_FITTING, WINDOW, tiny
from transformers import PreTrainedModel

from ridgeline.errors import InputError
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.model import trial
from ridgeline.serve.model.attention import NAME, register
from ridgeline.serve.model.load import load
from ridgeline.serve.model.own_attention import take_over
from ridgeline.serve.model.recurrent import RecurrentLayers, has_states


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    register()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def prove(model: PreTrainedModel) -> None:
    recurrent = trial.recurrent_layers(model, 96)
    trial.check(model, trial.kv_shapes(model, 96), 96, recurrent)


def assert_own_logits(model: PreTrainedModel) -> None:
    vocab = model.config.get_text_config().vocab_size
    take_over(model)
    shapes = trial.kv_shapes(model, vocab)
    recurrent = RecurrentLayers(model, vocab) if has_states(model.config) else None
    generator = torch.Generator().manual_seed(1)
    lengths = (WINDOW + 15, 10)
    prompts = [torch.randint(3, vocab, (length,), generator=generator) for length in lengths]
    with torch.inference_mode():
        plain = [model(one[None], use_cache=False).logits[0, -1] for one in prompts]
        model.set_attn_implementation(NAME)
        paged = trial._in_two_steps(model, prompts, shapes, recurrent=recurrent)
    for mine, theirs in zip(paged, plain, strict=True):
        spread = float(theirs.std())
        torch.testing.assert_close(mine / spread, theirs / spread, atol=1e-4, rtol=1e-4)


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("family", FITTING)
def test_the_logits_of_a_family_are_its_own_to_four_digits(family: str) -> None:
    assert_own_logits(tiny(family))


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("family", NOT_FITTING)
def test_a_family_that_would_be_silently_wrong_is_refused(family: str, tmp_path: Path) -> None:
    tiny(family).save_pretrained(tmp_path)
    config = EngineConfig(model=str(tmp_path), dtype="fp32", device="cpu")
    refusal = None
    try:
        load(config)
    except InputError as error:
        refusal = str(error)
    if refusal is None:  # A newer transformers may have brought the family into line.
        assert_own_logits(tiny(family))
    else:
        assert family in refusal
        assert "\n" not in refusal


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("deepseek_v32", "an index of its own chooses the tokens that its attention sees;"),
        ("minimax_m3_vl_text", "an index of its own chooses the tokens that its attention"),
        ("llama4_text", "its layers see back to the last multiple of 16 tokens;"),
        ("minimax", "its states are in a cache of its own, MiniMaxCache;"),
        ("xmod", "its own code does not run on a plain prompt (ValueError, Input language"),
    ],
)
def test_a_refusal_says_in_our_words_what_the_family_does(family: str, why: str) -> None:
    with pytest.raises(InputError) as refusal:
        prove(tiny(family))
    assert f"models of the family {family} cannot be served over a paged KV cache: {why}" in str(
        refusal.value
    )


def test_bf16_passes_the_check_too(tmp_path: Path) -> None:
    tiny("qwen3").save_pretrained(tmp_path)
    loaded = load(EngineConfig(model=str(tmp_path), dtype="bf16", device="cpu"))
    assert loaded.dtype == torch.bfloat16
    assert (loaded.layers, loaded.kv_heads, loaded.head_dim) == (4, 2, 8)


def test_a_wrong_position_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    packed = trial._packed

    def shifted(*args: object) -> object:
        description, positions, rows = packed(*args)  # type: ignore[arg-type]
        return description, positions + 3 * (positions > 5), rows

    monkeypatch.setattr(trial, "_packed", shifted)
    with pytest.raises(InputError, match="logits differ"):
        trial.check(model, trial.kv_shapes(model, 96), 96)


@pytest.mark.parametrize("where", ["nowhere/at/all", "."])
def test_a_folder_without_a_model_is_one_line(where: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refusal:
        load(EngineConfig(model=str(tmp_path / where), dtype="fp32", device="cpu"))
    assert "\n" not in str(refusal.value)
