"""Families whose layers become one operator, and that nothing else about them changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.serve.engine.workloads import tiny_engine
from tests.serve.model.tiny_families import FITTING, WITH_STATES, tiny

from ridgeline.serve.config import EngineConfig
from ridgeline.serve.model import direct as way
from ridgeline.serve.model import trial
from ridgeline.serve.model.load import load
from ridgeline.serve.model.loaded import LoadedModel

IN_ONE = {"llama", "mistral", "qwen2", "qwen3", "gemma", "granite"}
"""Whose layers the operator for all computes; a layer of SmolLM3 in four has no positions."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def loaded_from(folder: Path, dtype: str = "fp32") -> LoadedModel:
    return load(EngineConfig(model=str(folder), dtype=dtype, device="cpu"))


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("family", [one for one in FITTING if one not in WITH_STATES])
def test_a_loaded_family_has_the_logits_of_the_plain_model(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    model.save_pretrained(tmp_path)
    loaded = loaded_from(tmp_path)
    assert (loaded.direct is not None) == (family in IN_ONE), loaded.layer_path
    prompts = trial._two_prompts(loaded.model, loaded.vocab)
    with torch.inference_mode():
        expected = [model(one[None], use_cache=False).logits[0, -1] for one in prompts]
    found = trial.logits_over_blocks(loaded.model, loaded.kv_shapes, loaded.vocab)
    assert trial.worst_difference(found, expected) < 1e-4
    if loaded.direct is not None:
        straight = loaded.direct

        def forward(tokens, positions, pages, rows):
            return straight.logits(straight.states(tokens, positions, pages)[rows])

        with torch.inference_mode():
            found = trial._in_two_steps(loaded.model, prompts, loaded.kv_shapes, forward=forward)
        assert trial.worst_difference(found, expected) < 1e-4


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("granite", {"residual_multiplier": 0.5}),
        ("granite", {"logits_scaling": 0.5}),
        ("smollm3", {"num_hidden_layers": 4}),  # the fourth has no positions
    ],
)
def test_looks_do_not_count_only_what_is_computed(
    family: str, changes: dict[str, float], tmp_path: Path
) -> None:
    tiny(family, **changes).save_pretrained(tmp_path)
    loaded = loaded_from(tmp_path)
    assert loaded.direct is None
    assert "one by one: computed together, logits differ by" in loaded.layer_path


def test_what_the_operator_does_not_multiply_stays_as_it_is(tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path)
    loaded = loaded_from(tmp_path, "fp16")
    assert loaded.direct is None
    assert "linear layers that the operator for all does not multiply" in loaded.layer_path


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny("llama", num_hidden_layers=3).save_pretrained(folder)
    return folder


def test_the_layers_are_a_plain_list_however_one_walks_through_them(llama: Path) -> None:
    loaded = loaded_from(llama)
    assert loaded.direct is not None
    layers = loaded.model.model.layers
    assert type(layers) is torch.nn.ModuleList
    assert len(layers) == len(list(layers)) == 3
    assert [type(one) for one in layers] == [type(layers[place]) for place in range(3)]
    assert list(layers[:2]) == list(layers)[:2]
    assert any(name.endswith("layers.1.self_attn.q_proj") for name in loaded.linears())


def test_each_layers_states_and_hooks_are_those_of_the_plain_model(llama: Path) -> None:
    loaded = loaded_from(llama)
    assert loaded.direct is not None
    loaded.model.set_attn_implementation("eager")
    plain = tiny("llama", num_hidden_layers=3)
    tokens = torch.arange(2, 12)[None]
    seen: list[torch.Tensor] = []
    loaded.model.model.layers[1].register_forward_hook(lambda *of: seen.append(of[2]))
    with torch.inference_mode():
        found = loaded.model(tokens, output_hidden_states=True, use_cache=False).hidden_states
        expected = plain(tokens, output_hidden_states=True, use_cache=False).hidden_states
    assert len(found) == len(expected) == 4
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(seen[0], found[2])


def test_an_operator_that_fails_is_named_in_the_ledger_of_the_start(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("decoder_layers: no such thing\nat line 3")

    assert tiny_engine(llama).ready.ledger.layers == "all in one operator"
    monkeypatch.setattr(way, "decoder_layers", fails)
    engine = tiny_engine(llama)
    assert engine.model.direct is None
    assert engine.ready.ledger.layers == (
        "one by one: tried together, they raised RuntimeError: decoder_layers: no such thing"
    )
