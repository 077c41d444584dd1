"""A step that fails for one request ends that request; the others do not notice."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.serve.engine.workloads import (
    LIBRARY,
    VOCAB,
    finished,
    greedy,
    tiny_engine,
    write_tiny_llama,
)

from ridgeline.serve.config import SpeculationConfig
from ridgeline.serve.engine import admission
from ridgeline.serve.engine.attempt import by_halves
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.messages import Delta, Embed, Embedded, FromEngine, Refused, Sampling, Submit
from ridgeline.serve.model.loaded import ForwardOutput
from ridgeline.serve.sampling.text import TextStream

POISON, NAN = 95, 96
SHARED = list(range(3, 15))
"""Three blocks of four."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(autouse=True)
def _said(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Failures are logged with their trace, which is of no use here."""
    caplog.set_level(logging.CRITICAL, logger="ridgeline.serve")
    return


def poisonous(engine: ServingEngine) -> ServingEngine:
    """Its model raises at one token, and gives NaN where another one is."""
    own = engine._runner.forward

    def forward(batch: Any) -> ForwardOutput:
        if bool((batch.tokens == POISON).any()):
            at = batch.packed.slots
            size = engine.pool.block_size
            for layer in engine.pool.layers:  # whatever was written before it failed
                layer.keys[at // size, :, at % size] = 9.0
            raise IndexError("index out of range\nin self")
        computed = own(batch)
        starts = batch.packed.query_starts.tolist()
        for first, last in itertools.pairwise(starts):
            if bool((batch.tokens[first:last] == NAN).any()):
                mine = (batch.logit_rows >= first) & (batch.logit_rows < last)
                computed.logits[mine] = float("nan")
                computed.states[first:last] = float("nan")
        return computed

    engine._runner.forward = forward  # type: ignore[method-assign]
    return engine


def neighbours() -> list[Submit | Embed]:
    """Every kind of request, most with a prefix in common."""

    def asked(name: str, prompt: list[int], n: int = 1, **sampling: Any) -> Submit:
        sampling = {"max_tokens": 9, "ignore_eos": True, **sampling}
        bias = {POISON: -100.0, NAN: -100.0} if "beams" not in sampling else {}
        picked = Sampling(logit_bias=bias, **sampling)
        return Submit(id=name, prompt=tuple(prompt), sampling=picked, n=n)

    return [
        asked("greedy", [*SHARED, 20], temperature=0.0, repetition_penalty=1.3),
        asked("drawn", [*SHARED, 21], seed=3, logprobs=2),
        asked("several", [*SHARED, 22, 23], n=3, seed=7, top_k=20, top_p=0.9),
        asked("beams", [5, 6], temperature=0.0, beams=3, n=2, ignore_eos=False, max_tokens=4),
        asked("prompt", [*SHARED, 24], temperature=0.0, prompt_logprobs=1),
        Embed(id="vector", prompts=(tuple(SHARED), (7, 8, 9))),
    ]


def poisons() -> list[Submit | Embed]:
    drawn = Sampling(max_tokens=30, seed=1, ignore_eos=True)
    later = Sampling(max_tokens=30, temperature=0.0, logit_bias={POISON: 100.0})
    return [
        Submit(id="p0", prompt=(*SHARED, POISON), sampling=drawn),
        Submit(id="p1", prompt=(*SHARED, 30, POISON, 4, 5, 6), sampling=drawn, n=2),
        Submit(id="p2", prompt=(9, 8), sampling=later),
        Submit(id="p3", prompt=(*SHARED, 5, NAN), sampling=drawn),
        Submit(id="p4", prompt=(NAN,), sampling=Sampling(temperature=0.0, max_tokens=5)),
        Submit(id="p5", prompt=(1, NAN), sampling=Sampling(temperature=0.0, beams=2), n=2),
        Embed(id="p6", prompts=((1, 2), (*SHARED, POISON))),
        Embed(id="p7", prompts=((1, 2), (3, NAN))),
        Submit(id="p8", prompt=(3, NAN), sampling=Sampling(max_tokens=1, prompt_logprobs=0)),
    ]


def by_request(messages: list[FromEngine]) -> dict[str, list[Any]]:
    """What each request was sent, without times."""
    found: dict[str, list[Any]] = {}
    for one in messages:
        kept: Any = one
        if isinstance(one, Delta):
            kept = msgspec.structs.replace(
                one, times=None, cached_tokens=0, num_preemptions=0, wasted_tokens=0
            )
        found.setdefault(one.id, []).append(kept)
    return found


def check_left_clean(engine: ServingEngine) -> None:
    engine.scheduler.check()
    assert engine.scheduler.cache.num_free == engine.pool.num_blocks
    assert not engine._inputs._rows
    assert not engine._requests.ids
    assert not engine._requests.adapter_indices
    assert not engine._requests.rows_of


def check_refused(sent: list[Any], status: int = 500) -> Refused:
    refused = sent[-1]
    assert isinstance(refused, Refused), sent
    assert refused.status == status
    assert "\n" not in refused.message
    return refused


def undisturbed(folder: Path, **changes: Any) -> dict[str, list[Any]]:
    engine = tiny_engine(folder, **changes)
    for message in neighbours():
        engine.handle(message)
    return by_request(finished(engine))


@pytest.fixture(scope="module")
def engine(folder: Path) -> ServingEngine:
    return poisonous(tiny_engine(folder))


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, list[Any]]:
    return undisturbed(folder)


WAYS: dict[str, dict[str, Any]] = {
    "at once": {},
    "in chunks": {"max_tokens_per_step": 9},
    "without sharing": {"prefix_cache": False},
    "dynamic": {"kv_layout": "dynamic"},
    "with guesses": {"speculation": SpeculationConfig(kind="ngram", always=True)},
}


@pytest.mark.parametrize("way", WAYS)
def test_whoever_is_at_fault_ends_alone_and_the_others_get_what_they_would_have(
    folder: Path, way: str
) -> None:
    alone = undisturbed(folder, **WAYS[way])
    engine = poisonous(tiny_engine(folder, **WAYS[way]))
    mixed = [one for pair in zip(poisons(), neighbours(), strict=False) for one in pair]
    mixed += [one for one in poisons() if one not in mixed]
    for message in mixed:
        engine.handle(message)
    found = by_request(finished(engine))
    for poison in poisons():
        check_refused(found.pop(poison.id))
    assert {name: tokens(sent) for name, sent in found.items()} == {
        name: tokens(sent) for name, sent in alone.items()
    }
    check_left_clean(engine)


def tokens(sent: list[Any]) -> Any:
    """Tokens and texts of each answer; vectors to what float32 keeps."""
    if isinstance(sent[0], Embedded):
        return [[round(value, 4) for value in vector] for vector in sent[0].vectors]
    indices = {one.index for one in sent}
    return {
        at: [token for one in sent if one.index == at for token in one.tokens] for at in indices
    }


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(9)), gaps=st.lists(st.integers(0, 4), min_size=9, max_size=9))
def test_whenever_they_come(
    engine: ServingEngine, alone: dict[str, list[Any]], order: list[int], gaps: list[int]
) -> None:
    for message in neighbours():
        engine.handle(message)
    sent = engine.take()
    for which, gap in zip(order, gaps, strict=True):
        for _ in range(gap):
            engine.step()
        engine.handle(poisons()[which])
        sent += engine.take()
    found = by_request(sent + finished(engine))
    for poison in poisons():
        check_refused(found.pop(poison.id))
    assert {name: tokens(one) for name, one in found.items()} == {
        name: tokens(one) for name, one in alone.items()
    }
    check_left_clean(engine)


def test_who_shares_a_prefix_that_was_never_computed_computes_it(folder: Path) -> None:
    engine = poisonous(tiny_engine(folder))  # whose cache knows nothing yet
    prompt = [*SHARED, 40]
    engine.handle(greedy("bad", [*SHARED, POISON], 5))
    never = {POISON: -100.0, NAN: -100.0}
    engine.handle(greedy("good", prompt, 6, logit_bias=never))
    found = by_request(finished(engine))
    check_refused(found["bad"])
    other = tiny_engine(folder)
    other.handle(greedy("good", prompt, 6, logit_bias=never))
    assert tokens(found["good"]) == tokens(by_request(finished(other))["good"])
    # Nothing of the one that failed is found later.
    engine.handle(greedy("again", prompt, 6, logit_bias=never))
    assert tokens(by_request(finished(engine))["again"]) == tokens(found["good"])


def test_one_alone_is_at_fault_where_the_engine_works_without_it(folder: Path) -> None:
    engine = poisonous(tiny_engine(folder))
    engine.handle(greedy("bad", [POISON], 5))
    refused = check_refused(by_request(finished(engine))["bad"])
    assert refused.message == "the engine failed at this request: IndexError: index out of range"
    engine.handle(greedy("next", [5], 3))
    assert len(tokens(by_request(finished(engine))["next"])[0]) == 3


@pytest.mark.parametrize("count", [1, 3])
def test_an_engine_that_cannot_compute_without_any_request_is_broken(
    folder: Path, count: int
) -> None:
    engine = tiny_engine(folder)

    def forward(*_: Any) -> ForwardOutput:
        raise RuntimeError("the device is gone")

    engine._runner.forward = engine.model.forward = forward  # type: ignore[method-assign]
    for number in range(count):
        engine.handle(greedy(str(number), [5], 3))
    with pytest.raises(RuntimeError, match="the device is gone"):
        engine.step()


def test_a_model_of_nothing_but_nan_is_broken(folder: Path) -> None:
    engine = tiny_engine(folder)
    with torch.no_grad():
        engine.model.model.get_input_embeddings().weight.fill_(float("nan"))
    engine.handle(greedy("one", [5], 3))
    with pytest.raises(Exception, match="no finite numbers"):
        engine.step()


def test_text_that_cannot_be_decoded_ends_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine(LIBRARY, block_size=16)
    alone = [greedy(name, [300, 301, 302], 6) for name in ("a", "b")]
    for submit in alone:
        engine.handle(submit)
    expected = by_request(finished(engine))["a"]

    class Panic(BaseException):
        """As pyo3 raises a panic of Rust code."""

    push = TextStream.push

    requests = engine._requests

    def pushed(self: TextStream, token: int) -> None:
        if self in [requests.completions[one].state.text for one in requests.sequences("b")]:
            raise Panic("a panic")
        push(self, token)

    monkeypatch.setattr(TextStream, "push", pushed)
    for submit in alone:
        engine.handle(submit)
    found = by_request(finished(engine))
    check_refused(found["b"])
    assert found["a"] == expected
    check_left_clean(engine)


def test_a_drafter_that_fails_costs_guesses_not_answers(folder: Path) -> None:
    engine = tiny_engine(folder, speculation=SpeculationConfig(kind="ngram", always=True))
    assert engine._speculating is not None
    own = engine._speculating.drafter.propose

    def propose(sequences: list[Any], *others: Any) -> Any:
        if any(one.request.id == "bad" for one in sequences):
            raise RuntimeError("no guess")
        return own(sequences, *others)

    engine._speculating.drafter.propose = propose  # type: ignore[method-assign]
    prompt = [4, 5, 6, 4, 5, 6, 4, 5]
    for name in ("bad", "good"):
        engine.handle(greedy(name, prompt, 12))
    found = by_request(finished(engine))
    assert tokens(found["bad"]) == tokens(found["good"])
    assert engine.stats().drafted_tokens > 0
    check_left_clean(engine)


def test_an_unforeseen_error_in_a_message_is_that_messages(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine(folder)

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(admission, "open_prompts", broken)
    engine.handle(Embed(id="x", prompts=((1, 2),)))
    (refused,) = engine.take()
    check_refused([refused])
    check_left_clean(engine)


@given(
    items=st.lists(st.integers(0, 99), min_size=1, max_size=40, unique=True),
    bad=st.sets(st.integers(0, 99)),
)
def test_halves_find_exactly_who_spoils_it(items: list[int], bad: set[int]) -> None:
    calls = 0

    def work(some: list[int]) -> list[int]:
        nonlocal calls
        calls += 1
        if bad.intersection(some):
            raise ValueError
        return some

    found = by_halves(items, work)
    assert {one for one, _ in found.failed} == bad.intersection(items)
    assert sorted(one for some, _ in found.done for one in some) == sorted(set(items) - bad)
    culprits = len(found.failed)
    assert calls <= 1 + 2 * culprits * max(1, (len(items) - 1).bit_length())


def test_vocabulary_holds_both_poisons() -> None:
    assert max(POISON, NAN) < VOCAB
