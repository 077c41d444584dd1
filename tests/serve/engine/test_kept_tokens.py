"""`--kv-recent`: the engine attends as under a dense mask, in a cache that does not grow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from ridgeline.cli.main import run
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.messages import Delta, Refused, Sampling, Submit

LIBRARY = str(Path(__file__).parents[3] / "examples/models/library")
RECENT, FIRST = 20, 3
PROMPTS = (tuple(range(40, 70)), tuple((7 * at * at + 11) % 2000 for at in range(330)))


def masked(tokens: list[int], model: Any) -> int:
    """What the model says next when every token sees the first and the recent ones alone."""
    at = torch.arange(len(tokens))
    behind = at[:, None] - at
    seen = (behind >= 0) & ((behind < RECENT) | (at < FIRST))
    mask = torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))[None, None]
    with torch.inference_mode():
        return int(model(torch.tensor([tokens]), attention_mask=mask).logits[0, -1].argmax())


def engine_of(**given: Any) -> ServingEngine:
    config = EngineConfig(
        model=LIBRARY, device="cpu", dtype="fp32", threads=1, block_size=8, max_sequences=4,
        max_length=1024, kv_recent=RECENT, kv_first=FIRST, debug=True, **given,
    )  # fmt: skip
    return ServingEngine(config)


def answers(engine: ServingEngine, count: int, **asked: Any) -> dict[str, tuple[int, ...]]:
    for at, prompt in enumerate(PROMPTS):
        sampling = Sampling(max_tokens=count, temperature=0.0, ignore_eos=True, **asked)
        engine.handle(Submit(id=str(at), prompt=prompt, sampling=sampling))
    found: dict[str, tuple[int, ...]] = {}
    while engine.has_work:
        engine.step()
        for message in engine.take():
            assert isinstance(message, Delta)
            found[message.id] = found.get(message.id, ()) + message.tokens
    assert engine.stats().cache_usage == 0.0
    return found


@pytest.mark.slow
def test_layer_by_layer_too_tokens_are_those_under_a_dense_mask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ridgeline.serve.model import load

    def refuse(*_: Any, **__: Any) -> None:
        raise load.NotInOne("asked for by a test")

    monkeypatch.setattr(load, "direct", refuse)
    test_tokens_are_those_under_a_dense_mask_from_a_bounded_cache(12)


@pytest.mark.parametrize("count", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_tokens_are_those_under_a_dense_mask_from_a_bounded_cache(count: int) -> None:
    model = AutoModelForCausalLM.from_pretrained(LIBRARY, attn_implementation="eager").eval()
    engine = engine_of(max_tokens_per_step=96)
    found = answers(engine, count)
    for at, prompt in enumerate(PROMPTS):
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(masked(tokens, model))
        assert found[str(at)] == tuple(tokens[len(prompt) :])
    again = answers(engine, count)  # with what the first answers left in the prefix cache
    assert again == found
    assert engine.stats().prefix_hits > 0


def test_a_sequence_longer_than_the_cache_runs_in_what_it_keeps() -> None:
    engine = engine_of(max_tokens_per_step=64)
    block_bytes = engine.ready.ledger.bytes_per_token * 8
    kept = 1 + -(-(RECENT + 255) // 8) + 1
    engine = engine_of(max_tokens_per_step=64, kv_bytes=kept * block_bytes)
    assert engine.ready.ledger.num_blocks == kept < 330 // 8 + 12
    prompt = tuple(at % 1900 for at in range(700))
    engine.handle(Submit(id="a", prompt=prompt, sampling=Sampling(max_tokens=60, ignore_eos=True)))
    count = most = 0
    while engine.has_work:
        engine.step()
        most = max(most, *(len(one.blocks) for one in engine.scheduler.running), 0)
        for message in engine.take():
            assert isinstance(message, Delta)
            count += len(message.tokens)
    assert count == 60
    assert most <= kept
    row = next(row for row in engine.ready.ledger.rows if row.what == "kv blocks")
    assert f"3 first and 20 recent tokens, at most {kept} blocks a sequence" in row.note


def test_what_is_kept_is_not_handed_over() -> None:
    engine = engine_of()
    engine.handle(Submit(id="a", prompt=(1, 2), sampling=Sampling(max_tokens=4), handover=True))
    (refused,) = engine.take()
    assert isinstance(refused, Refused)
    assert "--kv-recent" in refused.message


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--kv-recent", "0"], "--kv-recent 0: at least 1"),
        (["--kv-recent", "64", "--kv-first", "-1"], "--kv-first -1: at least 0"),
        (["--kv-recent", "64", "--kv-layout", "dynamic"], "needs --kv-layout paged"),
        (["--kv-recent", "64", "--compiled"], "--compiled sees all tokens"),
        (["--kv-recent", "9000", "--kv-bytes", "1MiB"], "give a smaller --kv-recent"),
    ],
)
def test_what_cannot_be_kept_is_one_line(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["generate", LIBRARY, "--prompt", "import", "--device", "cpu"]
    assert run([*asked, *words]) == 2
    assert told in " ".join(capsys.readouterr().err.split())
