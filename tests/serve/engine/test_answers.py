"""What one request can ask for, and what becomes of it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests.serve.engine.workloads import (
    VOCAB,
    answers,
    finished,
    greedy,
    plain_greedy,
    tiny_engine,
    write_tiny_llama,
)

from ridgeline.serve.config import SpeculationConfig
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.messages import (
    Abort,
    Embed,
    Embedded,
    LoadAdapter,
    Refused,
    Sampling,
    Submit,
    ThoughtBudget,
    UnloadAdapter,
)

PROMPT = list(range(5, 30))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def engine(folder: Path) -> ServingEngine:
    return tiny_engine(folder)


@pytest.fixture(scope="module")
def plain(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def ran(engine: ServingEngine, *messages: Any) -> list[Any]:
    for message in messages:
        engine.handle(message)
    found = finished(engine)
    assert engine.stats().cache_usage == 0.0
    return found


def test_n_answers_fork_from_one_prompt_and_equal_single_ones_of_their_seeds(
    engine: ServingEngine,
) -> None:
    sampling = Sampling(max_tokens=10, seed=11, ignore_eos=True)
    before = engine.stats().prompt_tokens
    together = answers(ran(engine, Submit(id="n", prompt=tuple(PROMPT), sampling=sampling, n=3)))
    assert engine.stats().prompt_tokens - before == len(PROMPT), "the prompt was computed once"
    for index in range(3):
        alone = Submit(
            id="one",
            prompt=tuple(PROMPT),
            sampling=msgspec.structs.replace(sampling, seed=11 + index),
        )
        assert answers(ran(engine, alone))["one", 0] == together["n", index]


def test_one_token_ends_all_n_answers(engine: ServingEngine) -> None:
    sampling = Sampling(max_tokens=1, seed=1)
    found = ran(engine, Submit(id="n", prompt=(3, 4), sampling=sampling, n=4))
    assert sorted(one.index for one in found) == [0, 1, 2, 3]
    assert all(one.finish_reason in ("length", "stop") for one in found)


def test_a_stop_id_ends_an_answer_and_says_so(engine: ServingEngine, plain: Any) -> None:
    expected = plain_greedy(plain, PROMPT, 8)
    stop = expected[4]
    first = expected.index(stop)
    found = ran(engine, greedy("s", PROMPT, 8, stop_ids=(stop,)))
    assert [token for one in found for token in one.tokens] == expected[: first + 1]
    assert (found[-1].finish_reason, found[-1].stop_reason) == ("stop", stop)


@pytest.mark.parametrize("n", [1, 3])
def test_an_abort_ends_every_answer_at_once(engine: ServingEngine, n: int) -> None:
    sampling = Sampling(max_tokens=50, ignore_eos=True)
    engine.handle(Submit(id="a", prompt=tuple(PROMPT), sampling=sampling, n=n))
    if n == 1:
        engine.step()
    found = ran(engine, Abort(id="a"))
    ended = [one for one in found if one.finish_reason]
    assert [one.finish_reason for one in ended] == ["abort"] * n
    assert ran(engine, Abort(id="a"), Abort(id="unknown")) == []


def test_prompt_logprobs_are_those_of_the_plain_model_warm_or_cold(
    engine: ServingEngine, plain: Any
) -> None:
    with torch.inference_mode():
        logits = plain(torch.tensor([PROMPT])).logits[0]
    expected = logits[:-1].log_softmax(-1).gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0]
    for _ in range(2):
        found = ran(engine, greedy("p", PROMPT, 2, prompt_logprobs=1))
        entries = found[0].prompt_logprobs
        assert entries[0].chosen is None
        mine = torch.tensor([one.chosen.logprob for one in entries[1:]])
        torch.testing.assert_close(mine, expected, atol=1e-3, rtol=1e-3)
        assert all(not one.prompt_logprobs for one in found[1:])


@pytest.mark.parametrize("count", [1, 3])
def test_what_was_asked_of_a_prompt_comes_before_any_of_its_answers(
    engine: ServingEngine, count: int
) -> None:
    sampling = Sampling(max_tokens=count, seed=7, prompt_logprobs=1)
    found = ran(engine, Submit(id="p", prompt=tuple(PROMPT), sampling=sampling, n=3))
    assert [bool(one.prompt_logprobs) for one in found][:2] == [True, False]
    assert {one.index for one in found} == {0, 1, 2}


def test_embeddings_are_the_mean_of_the_last_hidden_states(
    engine: ServingEngine, plain: Any
) -> None:
    prompts = (tuple(PROMPT), (3, 4, 5), tuple(PROMPT))
    messages = ran(engine, greedy("beside", PROMPT, 5), Embed(id="e", prompts=prompts))
    (found,) = [one for one in messages if isinstance(one, Embedded)]
    for prompt, vector in zip(prompts, found.vectors, strict=True):
        with torch.inference_mode():
            states = plain.model(torch.tensor([prompt])).last_hidden_state[0]
        expected = torch.nn.functional.normalize(states.mean(0), dim=0)
        torch.testing.assert_close(torch.tensor(vector), expected, atol=1e-4, rtol=1e-3)


def test_beams_find_what_transformers_finds(engine: ServingEngine, plain: Any) -> None:
    sampling = Sampling(max_tokens=8, beams=3, temperature=0.0)
    found = ran(engine, Submit(id="b", prompt=tuple(PROMPT), sampling=sampling, n=2))
    expected = plain.generate(
        torch.tensor([PROMPT]), num_beams=3, num_return_sequences=2, max_new_tokens=8,
        do_sample=False, pad_token_id=0, eos_token_id=2,
    )  # fmt: skip
    for delta, tokens in zip(found, expected[:, len(PROMPT) :].tolist(), strict=True):
        kept = list(delta.tokens)
        assert kept == tokens[: len(kept)]
    assert found[0].cumulative_logprob >= found[1].cumulative_logprob


@pytest.mark.parametrize("kind", ["ngram", "draft"])
def test_drafts_change_no_greedy_token(folder: Path, engine: ServingEngine, kind: str) -> None:
    prompts = {"a": PROMPT, "b": [7, 8, 9] * 5, "c": [3]}
    expected = answers(ran(engine, *(greedy(name, one, 20) for name, one in prompts.items())))
    path = str(folder) if kind == "draft" else ""
    drafting = tiny_engine(folder, speculation=SpeculationConfig(kind=kind, path=path, always=True))
    found = answers(ran(drafting, *(greedy(name, one, 20) for name, one in prompts.items())))
    assert found == expected
    if kind == "draft":
        assert drafting.stats().accepted_tokens == drafting.stats().drafted_tokens > 0
        rows = {row.what for row in drafting.ready.ledger.rows}
        assert {"draft weights", "draft kv blocks"} <= rows


def test_a_prefilled_request_goes_on_in_another_engine(
    folder: Path, engine: ServingEngine, plain: Any
) -> None:
    other = tiny_engine(folder, block_size=8)
    submit = msgspec.structs.replace(greedy("h", PROMPT, 10), handover=True)
    (first,) = ran_to_handover(engine, submit)
    assert first.finish_reason == "handover"
    kv = engine.export_kv("h")
    assert engine.stats().cache_usage == 0.0
    other.import_kv(submit, kv)
    rest = finished(other)
    tokens = [*first.tokens, *(token for one in rest for token in one.tokens)]
    assert tokens == plain_greedy(plain, PROMPT, 10)
    with pytest.raises(Exception, match="no prefilled request h"):
        engine.export_kv("h")


def ran_to_handover(engine: ServingEngine, submit: Submit) -> list[Any]:
    engine.handle(submit)
    return finished(engine)


@pytest.mark.parametrize(
    ("message", "status", "words"),
    [
        (greedy("x", [], 3), 400, "prompt"),
        (greedy("x", [VOCAB], 3), 400, f"0 to {VOCAB - 1}"),
        (greedy("x", [1] * 300, 3), 400, "at most"),
        (Embed(id="x", prompts=((),)), 400, "prompt"),
        (msgspec.structs.replace(greedy("x", [1], 3), adapter="no"), 404, "no adapter no"),
        (UnloadAdapter(id="x", name="no"), 404, "no adapter no"),
        (LoadAdapter(id="x", name="a", path="/nowhere"), 400, "/nowhere"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(
    engine: ServingEngine, message: Any, status: int, words: str
) -> None:
    (refused,) = ran(engine, message)
    assert isinstance(refused, Refused)
    assert (refused.id, refused.status) == ("x", status)
    assert words in refused.message
    assert "\n" not in refused.message


def test_a_second_request_of_a_running_id_is_refused(engine: ServingEngine) -> None:
    found = ran(engine, greedy("same", PROMPT, 3), greedy("same", PROMPT, 3))
    assert isinstance(found[0], Refused)
    assert found[-1].finish_reason == "length"


def test_an_answer_leaves_one_line_in_the_log(
    engine: ServingEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="ridgeline.serve"):
        ran(engine, greedy("logged", PROMPT, 3))
    (record,) = caplog.records
    line = msgspec.json.decode(record.message)
    assert line["id"] == "logged"
    assert (line["output_tokens"], line["num_preemptions"], line["wasted_tokens"]) == (3, 0, 0)


def test_a_text_answer_ends_at_its_stop_string() -> None:
    from tests.serve.engine.workloads import LIBRARY

    engine = tiny_engine(LIBRARY, block_size=16, kv_bytes=2**24)
    tokens = tuple(engine.model.tokenizer("import os\nimport ").input_ids)
    whole = "".join(one.text for one in ran(engine, greedy("w", list(tokens), 12)))
    stop = whole[3:6]
    found = ran(engine, greedy("s", list(tokens), 12, stop=(stop,)))
    assert "".join(one.text for one in found) == whole[: whole.index(stop)]
    assert found[-1].stop_reason == stop


def test_an_answer_with_a_line_ends_when_its_time_is_over() -> None:
    from tests.serve.engine.workloads import LIBRARY

    engine = tiny_engine(LIBRARY, block_size=16, kv_bytes=2**24)
    prompt, line, letter = (
        engine.model.tokenizer(text).input_ids for text in ("import os", "\n", "a")
    )
    for (token,), count in ((line, 1), (letter, 30)):
        bias = {token: 100.0}
        for timed in (1e-9, 0.0, 1e9):
            found = ran(engine, greedy("t", prompt, 30, logit_bias=bias, line_seconds=timed))
            assert found[-1].finish_reason == "length"
            assert found[-1].output_tokens == (count if timed == 1e-9 else 30)
            assert len("".join(one.text for one in found)) == found[-1].output_tokens


@pytest.mark.parametrize("drafter", ["", "ngram"])
def test_thoughts_end_when_their_budget_is_spent(folder: Path, drafter: str) -> None:
    opens, closes = 7, 9
    speculation = SpeculationConfig(kind="ngram", always=True) if drafter else None
    engine = tiny_engine(folder, speculation=speculation)
    for inside, begins in ((True, []), (False, [opens])):
        budget = ThoughtBudget(most=2, open=opens, close=closes, inside=inside)
        given = {"logit_bias": {opens: 100.0}, "thoughts": budget}
        found = ran(engine, greedy("t", PROMPT, 9, **given))
        tokens = [token for one in found for token in one.tokens]
        spent = [*begins, opens, opens, closes, opens, closes, opens, closes, opens, closes]
        assert tokens == spent[:9]
        likeliest = ran(engine, greedy("t", PROMPT, 4, thoughts=budget))
        assert (closes in [token for one in likeliest for token in one.tokens]) is inside
