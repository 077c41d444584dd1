"""llama.cpp's own endpoints, as editors and its Python client send and read them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.serve.http.servers import Server

from ridgeline.serve.http.protocol.llama_cpp import LlamaCompletionRequest
from ridgeline.serve.messages import Sampling

PROMPT = "SAY the quick é END"
EVERYTHING_OFF = {
    "dynatemp_range": 0, "dynatemp_exponent": 1, "typical_p": 1, "xtc_probability": 0,
    "xtc_threshold": 0.1, "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2,
    "dry_penalty_last_n": -1, "mirostat": 0, "mirostat_tau": 5, "top_n_sigma": -1,
}  # fmt: skip


def ask(stub: Server, **body: Any) -> Any:
    response = stub.post("/completion", {"prompt": PROMPT, **body})
    assert response.status_code == 200, response.text
    return response.json()


def test_a_text_is_continued_and_says_why_it_ended(stub: Server) -> None:
    found = ask(stub, return_tokens=True, **EVERYTHING_OFF)
    assert (found["content"], found["stop_type"]) == ("the quick é", "eos")
    assert found["tokens_predicted"] == len(found["tokens"]) > 2
    assert found["tokens_evaluated"] > 2
    assert found["timings"]["predicted_n"] == found["tokens_predicted"]
    assert ask(stub, n_predict=2)["stop_type"] == "limit"
    alone = ask(stub, n_predict=0)
    assert (alone["content"], alone["tokens_predicted"]) == ("", 0)
    assert [one["content"] for one in ask(stub, prompt=["SAY a END", "SAY b END"])] == ["a", "b"]


def test_a_stream_has_what_is_new_and_the_counts_at_its_end(stub: Server) -> None:
    body = {"prompt": PROMPT, "stream": True, "n_probs": 2}
    lines = stub.post("/completion", body).text.splitlines()
    *others, last = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert "".join(one["content"] for one in (*others, last)) == "the quick é"
    assert [one["stop"] for one in others] == [False] * len(others)
    assert last["stop"] is True
    assert last["tokens_predicted"] > 2
    (first, *_) = others[0]["completion_probabilities"]
    assert first["logprob"] <= 0
    assert len(first["top_logprobs"]) >= 2


def test_hints_of_machine_and_cache_are_taken_and_told(stub: Server) -> None:
    body = {"prompt": PROMPT, "cache_prompt": True, "samplers": ["top_k"], "t_max_prompt_ms": 9}
    response = stub.post("/completion", body)
    told = response.headers["x-without-effect"].split(", ")
    assert told == ["cache_prompt", "t_max_prompt_ms"]


ALL = {"top_k": 7, "top_p": 0.3, "min_p": 0.2, "temperature": 0.4}


def drawn_by(**given: Any) -> Sampling:
    """What the engine is told by a request of `/completion`."""
    asked = LlamaCompletionRequest.model_validate({"prompt": PROMPT, **given}).completion()
    return asked.sampling(max_tokens=1, logprobs=None, grammar=None, vocab=9)


@pytest.mark.parametrize("named", [["top_k", "penalties"], "ke"])
def test_samplers_that_are_not_named_are_left_out(named: list[str] | str) -> None:
    sampling = drawn_by(samplers=named, **ALL | {"repeat_penalty": 1})
    assert (sampling.top_k, sampling.repetition_penalty) == (7, 1)
    assert (sampling.top_p, sampling.min_p, sampling.temperature) == (1, 0, 1)
    assert sampling.chain == ()


def test_a_time_for_the_answer_is_told_to_the_engine() -> None:
    assert drawn_by(t_max_predict_ms=250).line_seconds == 0.25
    assert drawn_by(t_max_predict_ms=-1).line_seconds == drawn_by().line_seconds == 0


def test_samplers_come_in_the_order_that_is_asked_for_or_llama_cpps_own() -> None:
    assert drawn_by(**ALL).chain == ("top_k", "top_p", "min_p", "temperature")
    assert drawn_by(samplers="tpmk", **ALL).chain == ("temperature", "top_p", "min_p", "top_k")
    assert drawn_by(samplers=["temperature", "min_p", "top_k", "top_p"], **ALL).chain == ()
    assert drawn_by(top_k=7, temperature=0.4).chain == ()  # cut alike in both orders
    assert drawn_by(samplers="kpi", top_p=0.5).chain == ()


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
def test_orders_that_are_not_computed_and_samplers_that_are_not_known_are_refused(
    stub: Server, path: str
) -> None:
    given: Any = {"prompt": PROMPT, "max_tokens": 4}
    if "chat" in path:
        given = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4}
    if path == "/completion":
        given = {"prompt": PROMPT, "n_predict": 4}
    penalty = "repeat_penalty" if path == "/completion" else "repetition_penalty"
    late = stub.post(path, {**given, "samplers": ["top_k", "penalties"], "top_k": 3, penalty: 1.5})
    assert late.status_code == 400
    assert "penalties come first here, not behind top_k" in late.json()["error"]["message"]
    unknown = stub.post(path, {**given, "samplers": ["top_q"]})
    assert unknown.status_code == 400
    assert "'top_q' is no sampler" in unknown.json()["error"]["message"]
    gap = stub.post(path, {**given, "samplers": ["top_k", "infill"]})
    assert gap.headers["x-without-effect"] == "samplers.infill"


def test_how_far_penalties_look_back_is_nothing_where_they_are_off(stub: Server) -> None:
    body = {"prompt": PROMPT, "repeat_last_n": 64, "repeat_penalty": 1, "presence_penalty": 0}
    assert stub.post("/v1/completions", body).status_code == 200
    on = stub.post("/v1/completions", {**body, "presence_penalty": 1})
    assert "repeat_last_n" in on.json()["error"]["message"]


def test_all_names_of_a_field_at_once_say_no_more_than_one(stub: Server) -> None:
    """As SillyTavern sends them."""
    names = {
        "model": "library", "max_new_tokens": 3, "max_tokens": 3, "n_predict": 3, "num_predict": 3,
        "stopping_strings": ["x"], "stop": ["x"], "rep_pen": 1.1, "repeat_penalty": 1.1,
        "logit_bias": [], "grammar_string": "", "ban_eos_token": False,
        "timings_per_token": True,
    }  # fmt: skip
    body = {"prompt": PROMPT, **EVERYTHING_OFF, **names}
    for path in ("/completion", "/v1/completions"):
        more = {} if path == "/completion" else {"repetition_penalty": 1.1}
        assert stub.post(path, {**body, **more}).status_code == 200
    other = stub.post("/completion", {**body, "max_new_tokens": 9})
    assert "max_new_tokens" in other.json()["error"]["message"]


def test_a_conversation_is_written_and_texts_go_to_tokens_and_back(stub: Server) -> None:
    written = stub.post("/apply-template", {"messages": [{"role": "user", "content": "hi"}]})
    assert written.json()["prompt"] == "user: hi\nassistant:"
    tokens = stub.post("/tokenize", {"content": "hi there", "parse_special": True}).json()["tokens"]
    assert stub.post("/detokenize", {"tokens": tokens}).json()["content"] == "hi there"
    told = stub.get("/props").json()
    assert told["default_generation_settings"]["n_ctx"] > 16
    assert told["model_path"].endswith("library")


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("name", ["typical_p", "xtc_probability", "dry_multiplier", "mirostat"])
def test_a_sampler_that_is_not_here_is_refused_when_it_is_on(
    stub: Server, path: str, name: str
) -> None:
    """Off, it is as good as not given, and so are its parts."""
    given: Any = {"prompt": PROMPT}
    if "chat" in path:
        given = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": -1}
    assert stub.post(path, {**given, **EVERYTHING_OFF}).status_code == 200
    on = stub.post(path, {**given, **EVERYTHING_OFF, name: 0.5})
    assert on.status_code == 400
    assert name in on.json()["error"]["message"]


def test_a_gap_is_refused_where_the_tokenizer_has_no_tokens_for_it(stub: Server) -> None:
    response = stub.post("/infill", {"input_prefix": "a", "input_suffix": "b"})
    assert response.json()["error"]["param"] == "input_suffix"


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"]
)
def test_a_conversations_tokens_are_counted(stub: Server, path: str) -> None:
    body = {"messages": [{"role": "user", "content": "SAY a END"}], "verbose": True}
    counted = stub.post(path, body)
    assert counted.headers["x-without-effect"] == "verbose"
    whole = stub.post("/v1/chat/completions", {**body, "max_tokens": 1}).json()
    assert counted.json()["input_tokens"] == whole["usage"]["prompt_tokens"]


def test_tokens_may_stand_beside_their_texts(stub: Server) -> None:
    given = {"content": "class Sequence", "with_pieces": True}
    found = stub.post("/tokenize", given).json()["tokens"]
    assert "".join(one["piece"] for one in found) == given["content"]
    plain = stub.post("/tokenize", {"content": given["content"]}).json()["tokens"]
    assert [one["id"] for one in found] == plain
