"""Families whose layers become one operator, and that nothing else about them changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.serve.model.tiny_families import FITTING, tiny

from ridgeline.serve.config import EngineConfig
from ridgeline.serve.model import trial
from ridgeline.serve.model.loaded import load
from ridgeline.serve.model.stacked import Stacked

STACKED = {"llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma", "granite"}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("family", FITTING)
def test_a_loaded_family_has_the_logits_of_the_plain_model(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    model.save_pretrained(tmp_path)
    loaded = load(EngineConfig(model=str(tmp_path), dtype="fp32", device="cpu"))
    layers = [one for one in loaded.model.modules() if isinstance(one, Stacked)]
    assert bool(layers) == (family in STACKED)
    assert (loaded.direct is not None) == (family in STACKED)
    prompts = trial._two_prompts(loaded.model, loaded.vocab)
    with torch.inference_mode():
        expected = [model(one[None], use_cache=False).logits[0, -1] for one in prompts]
    found = trial.logits_over_blocks(loaded.model, loaded.kv_shapes, loaded.vocab)
    assert trial.worst_difference(found, expected) < 1e-4
    if layers:
        names = {name.rsplit(".", 1)[0] for name in loaded.linears()}
        assert any(name.endswith("layers.1.self_attn") for name in names)


@pytest.mark.parametrize(
    ("family", "changes", "stacked"),
    [
        ("granite", {"residual_multiplier": 0.5}, False),
        ("granite", {"logits_scaling": 0.5}, True),
        ("smollm3", {"num_hidden_layers": 4}, False),  # the fourth has no positions
    ],
)
def test_looks_do_not_count_only_what_is_computed(
    family: str, changes: dict[str, float], stacked: bool, tmp_path: Path
) -> None:
    tiny(family, **changes).save_pretrained(tmp_path)
    loaded = load(EngineConfig(model=str(tmp_path), dtype="fp32", device="cpu"))
    assert isinstance(loaded.model.base_model.layers, Stacked) == stacked
    assert loaded.direct is None


def test_what_the_operator_does_not_multiply_stays_as_it_is(tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path)
    loaded = load(EngineConfig(model=str(tmp_path), dtype="fp16", device="cpu"))
    assert loaded.direct is None
    assert type(loaded.model.base_model.layers) is torch.nn.ModuleList


def test_stacked_layers_are_printed_and_found_by_number(tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path)
    layers = load(EngineConfig(model=str(tmp_path), dtype="fp32", device="cpu")).model.model.layers
    assert isinstance(layers, Stacked)
    assert len(layers) == 2
    assert layers[1] is layers.get_submodule("1")
    assert "self_attn" in repr(layers)
