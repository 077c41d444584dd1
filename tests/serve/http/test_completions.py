"""`/v1/completions`, on the real server around an engine that says what it is told."""

from __future__ import annotations

from typing import Any

import pytest
from tests.serve.http.servers import Server, sse

PROMPT = "SAY the quick brown fox é 日本 END"
ANSWER = "the quick brown fox é 日本"


def ask(stub: Server, **fields: Any) -> Any:
    response = stub.post("/v1/completions", {"model": "library", "max_tokens": 64, **fields})
    assert response.status_code == 200, response.text
    return sse(response) if fields.get("stream") else response.json()


def test_an_answer_has_text_reason_and_usage(stub: Server) -> None:
    answer = ask(stub, prompt=PROMPT)
    (choice,) = answer["choices"]
    assert choice["text"] == ANSWER
    assert choice["finish_reason"] == "stop"
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 3}


def test_a_stream_brings_every_token_once_then_usage_then_done(stub: Server) -> None:
    chunks = ask(stub, prompt=PROMPT, stream=True, logprobs=0,
                 stream_options={"include_usage": True})  # fmt: skip
    *parts, last = chunks
    assert "".join(chunk["choices"][0]["text"] for chunk in parts) == ANSWER
    assert [part["choices"][0]["finish_reason"] for part in parts].count("stop") == 1
    assert parts[-1]["choices"][0]["finish_reason"] == "stop"
    shown = sum(len(part["choices"][0]["logprobs"]["tokens"]) for part in parts)
    assert last["choices"] == []
    assert shown == last["usage"]["completion_tokens"]
    assert all(part["usage"] is None for part in parts)


def test_max_tokens_ends_with_length(stub: Server) -> None:
    (choice,) = ask(stub, prompt=PROMPT, max_tokens=2)["choices"]
    assert choice["finish_reason"] == "length"
    assert ANSWER.startswith(choice["text"])


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_times_answers_are_indexed_in_order(stub: Server, stream: bool) -> None:
    prompts = ["SAY alpha END", "SAY beta beta END"]
    answer = ask(stub, prompt=prompts, n=2, stream=stream)
    texts = dict.fromkeys(range(4), "")
    for part in answer if stream else [answer]:
        for choice in part["choices"]:
            texts[choice["index"]] += choice["text"]
    assert list(texts.values()) == ["alpha", "alpha", "beta beta", "beta beta"]


def test_token_ids_are_a_prompt_too(stub: Server) -> None:
    tokens = stub.post("/tokenize", {"prompt": PROMPT}).json()["tokens"]
    assert ask(stub, prompt=tokens)["choices"][0]["text"] == ANSWER
    several = ask(stub, prompt=[tokens, tokens])
    assert [choice["text"] for choice in several["choices"]] == [ANSWER, ANSWER]


@pytest.mark.parametrize("stream", [False, True])
def test_echo_puts_the_prompt_first_with_its_log_probabilities(stub: Server, stream: bool) -> None:
    answer = ask(stub, prompt=PROMPT, echo=True, logprobs=2, stream=stream)
    text, tokens, offsets, chosen, tops = "", [], [], [], []
    for part in answer if stream else [answer]:
        for choice in part["choices"]:
            text += choice["text"]
            logprobs = choice["logprobs"]
            tokens += logprobs["tokens"]
            offsets += logprobs["text_offset"]
            chosen += logprobs["token_logprobs"]
            tops += logprobs["top_logprobs"]
    assert text == PROMPT + ANSWER
    assert chosen[0] is None
    assert tops[0] is None
    assert all(value == -0.5 for value in chosen[1:])
    assert all(1 <= len(top) <= 3 for top in tops[1:])
    assert offsets == [sum(map(len, tokens[:at])) for at in range(len(tokens))]


def test_echo_alone_scores_a_text_without_generating(stub: Server) -> None:
    answer = ask(stub, prompt=PROMPT, echo=True, logprobs=0, max_tokens=0)
    (choice,) = answer["choices"]
    assert choice["text"] == PROMPT
    assert answer["usage"]["completion_tokens"] == 0
    assert len(choice["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"]
