"""Layers that keep a state of each sequence: the tokens of the plain model, however it is cut."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests.serve.engine.workloads import answers, finished, greedy, plain_greedy, tiny_engine
from tests.serve.model.tiny_families import VOCAB, WITH_STATES, tiny

from ridgeline.errors import InputError
from ridgeline.serve.cluster.kv_engine import engine as kv_engine
from ridgeline.serve.config import EngineConfig, SpeculationConfig
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.engine.start import build_parts
from ridgeline.serve.model import recurrent

WAYS: dict[str, dict[str, Any]] = {
    "paged": {},
    "chunks of seven": {"max_tokens_per_step": 7},
    "one token of a prompt at a time": {"max_tokens_per_step": 3, "max_sequences": 2},
    "contiguous": {"kv_layout": "contiguous"},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def folder(family: str) -> Path:
        path = tmp_path_factory.mktemp(family)
        tiny(family).save_pretrained(path)
        return path

    return folder


@pytest.fixture(scope="module")
def plain(folders: Any) -> Any:
    from transformers import AutoModelForCausalLM

    @cache
    def model(family: str) -> Any:
        return AutoModelForCausalLM.from_pretrained(folders(family), dtype=torch.float32)

    @cache
    def tokens(family: str, prompt: tuple[int, ...], count: int) -> list[int]:
        return plain_greedy(model(family), list(prompt), count)

    return tokens


def prompts(count: int, seed: int = 0) -> dict[str, list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 24, (count,), generator=generator).tolist()
    return {
        str(i): torch.randint(3, VOCAB, (length,), generator=generator).tolist()
        for i, length in enumerate(lengths)
    }


@pytest.mark.sweep("lfm2", "mamba")
@pytest.mark.parametrize("family", WITH_STATES)
def test_every_way_gives_the_tokens_of_the_plain_model(
    family: str, folders: Any, plain: Any
) -> None:
    asked = prompts(4)
    expected = {(name, 0): plain(family, tuple(one), 6) for name, one in asked.items()}
    for way, changes in WAYS.items():
        engine = tiny_engine(folders(family), **{"max_length": 64, **changes})
        for name, prompt in asked.items():
            engine.handle(greedy(name, prompt, 6))
        assert answers(finished(engine)) == expected, way


def lfm2(folders: Any, **changes: Any) -> ServingEngine:
    return tiny_engine(folders("lfm2"), **changes)


def test_whoever_gave_way_begins_with_no_state(folders: Any, plain: Any) -> None:
    of_one = 2 * 3 * 32 * 3 * 4  # two places, three layers, three tokens of 32 channels in float32
    engine = lfm2(folders, max_sequences=3, kv_bytes=2 * 3 * of_one)
    asked = {str(i): [i + 3] * 9 for i in range(4)}
    for name, prompt in asked.items():
        engine.handle(greedy(name, prompt, 20))
    found = answers(finished(engine))
    assert engine.stats().preemptions > 0
    for name, prompt in asked.items():
        assert found[name, 0] == plain("lfm2", tuple(prompt), 20)


def test_a_step_that_is_computed_again_reads_the_states_before_it(
    folders: Any, plain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = lfm2(folders)
    pick = engine._outcomes.pick
    calls = 0

    def failing(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls in (2, 5):
            raise RuntimeError("once")
        return pick(*given)

    monkeypatch.setattr(engine._outcomes, "pick", failing)
    asked = prompts(4, seed=1)
    for name, prompt in asked.items():
        engine.handle(greedy(name, prompt, 8))
    found = answers(finished(engine))
    assert calls > 8
    for name, prompt in asked.items():
        assert found[name, 0] == plain("lfm2", tuple(prompt), 8)


def test_several_answers_and_equal_beginnings_share_no_state(folders: Any, plain: Any) -> None:
    engine = lfm2(folders)
    prompt = list(range(5, 45))
    engine.handle(greedy("first", prompt, 6))
    first = finished(engine)
    engine.handle(msgspec.structs.replace(greedy("again", prompt, 6), n=2))
    again = finished(engine)
    expected = plain("lfm2", tuple(prompt), 6)
    assert answers(first)["first", 0] == expected
    assert [answers(again)["again", place] for place in (0, 1)] == [expected, expected]
    assert engine.stats().prefix_hits == 0


def test_the_ledger_has_the_states_and_fewer_run_where_they_are_large(folders: Any) -> None:
    engine = lfm2(folders, kv_bytes=40_000)
    rows = {row.what: row for row in engine.ready.ledger.rows}
    assert rows["states"].bytes <= 20_000
    assert rows["states"].bytes + rows["kv blocks"].bytes <= 40_000
    seats = engine.scheduler.limits.max_sequences
    assert 1 <= seats < 256
    assert str(seats) in rows["states"].note


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"speculation": SpeculationConfig(kind="ngram")}, "--speculative"),
        ({"compiled": True}, "--compiled"),
        ({"tp": 2}, "--tp 2"),
        ({"kv_bytes": 1000}, "--kv-bytes"),
    ],
)
def test_what_does_not_go_together_with_states_is_one_line(
    folders: Any, changes: dict[str, Any], named: str
) -> None:
    config = EngineConfig(model=str(folders("lfm2")), dtype="fp32", device="cpu", **changes)
    with pytest.raises(InputError, match=named) as refusal:
        build_parts(config)
    assert "\n" not in str(refusal.value)


def test_states_are_not_handed_over_between_engines(folders: Any) -> None:
    config = EngineConfig(model=str(folders("lfm2")), dtype="fp32", device="cpu", threads=1)
    with pytest.raises(InputError, match="not handed over between engines"):
        kv_engine(config)


@pytest.mark.parametrize("family", ["mamba", "jamba"])
def test_a_scan_that_the_library_begins_at_zero_goes_on_in_chunks(
    family: str, folders: Any, plain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("a chunk went token by token")

    monkeypatch.setattr(recurrent._Mixer, "_one_by_one", never)
    prompt = [(7 * at) % (VOCAB - 3) + 3 for at in range(50)]
    engine = tiny_engine(folders(family), max_tokens_per_step=16, max_length=64)
    engine.handle(greedy("long", prompt, 6))
    assert answers(finished(engine))["long", 0] == plain(family, tuple(prompt), 6)
