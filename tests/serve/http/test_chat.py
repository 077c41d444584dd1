"""`/v1/chat/completions`, on the real server around an engine that says what it is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.serve.http.servers import Server, sse

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>'


def body(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "library", "messages": [{"role": "user", "content": text}], **fields}


def ask(stub: Server, text: str, **fields: Any) -> Any:
    response = stub.post("/v1/chat/completions", body(text, **fields))
    assert response.status_code == 200, response.text
    return sse(response) if fields.get("stream") else response.json()


def put_together(chunks: list[Any]) -> dict[str, Any]:
    """The message that a stream's chunks of one answer make."""
    found: dict[str, Any] = {"content": "", "calls": {}, "reasons": []}
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            found["content"] += delta.get("content") or ""
            for call in delta.get("tool_calls") or []:
                known = found["calls"].setdefault(call["index"], {"arguments": "", **call})
                known["arguments"] += call["function"]["arguments"]
            if choice["finish_reason"]:
                found["reasons"].append(choice["finish_reason"])
    return found


def test_a_stream_is_role_content_reason_usage(stub: Server) -> None:
    chunks = ask(stub, "SAY hello there END", stream=True, stream_options={"include_usage": True})
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[1:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    found = put_together(chunks)
    assert found["content"] == "hello there"
    assert found["reasons"] == ["stop"]
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_log_probabilities_have_bytes_and_as_many_as_were_asked_for(stub: Server) -> None:
    answer = ask(stub, "SAY hello there END", logprobs=True, top_logprobs=2)
    (choice,) = answer["choices"]
    content = choice["logprobs"]["content"]
    assert "".join(one["token"] for one in content) == choice["message"]["content"]
    assert all(len(one["top_logprobs"]) == 2 for one in content)
    assert all(bytes(one["bytes"]).decode() == one["token"] for one in content)
    chunks = ask(stub, "SAY hello there END", logprobs=True, stream=True)
    parts = [c["choices"][0]["logprobs"] for c in chunks if c["choices"][0]["logprobs"]]
    streamed = [one for part in parts for one in part["content"]]
    assert [one["token"] for one in streamed] == [one["token"] for one in content]


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_call_is_found_and_ends_with_its_own_reason(stub: Server, stream: bool) -> None:
    answer = ask(stub, f"SAY I look. {CALL} END", tools=[WEATHER], stream=stream)
    if stream:
        found = put_together(answer)
        assert found["content"].strip() == "I look."
        assert found["reasons"] == ["tool_calls"]
        (call,) = found["calls"].values()
        assert call["arguments"] == '{"city": "Ulm"}'
    else:
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["arguments"] == '{"city": "Ulm"}'
    assert call["function"]["name"] == "weather"
    assert call["type"] == "function"
    assert call["id"].startswith("call_")


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_call_that_is_cut_off_ends_with_length(stub: Server, stream: bool) -> None:
    answer = ask(stub, f"SAY {CALL} END", tools=[WEATHER], stream=stream, max_tokens=20)
    if stream:
        assert put_together(answer)["reasons"] == ["length"]
    else:
        assert answer["choices"][0]["finish_reason"] == "length"


def test_without_tools_a_tag_is_text(stub: Server) -> None:
    assert ask(stub, f"SAY {CALL} END")["choices"][0]["message"]["content"] == CALL
    answer = ask(stub, f"SAY {CALL} END", tools=[WEATHER], tool_choice="none")
    assert answer["choices"][0]["message"]["content"] == CALL


def test_one_call_at_a_time_if_asked(stub: Server) -> None:
    answer = ask(stub, f"SAY {CALL}{CALL} END", tools=[WEATHER], parallel_tool_calls=False)
    assert len(answer["choices"][0]["message"]["tool_calls"]) == 1


def test_a_named_tool_gets_the_whole_answer_as_arguments(stub: Server) -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    answer = ask(stub, 'SAY {"city": 1} END', tools=[WEATHER], tool_choice=choice)
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": 1}


def test_a_conversation_with_calls_and_parts_reaches_the_template(stub: Server) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "content": "result", "tool_call_id": "1"},
    ]
    tokens = stub.post("/tokenize", {"messages": messages}).json()["tokens"]
    prompt = stub.post("/detokenize", {"tokens": tokens}).json()["prompt"]
    assert prompt == 'system: be brief\nuser: a\nb\nassistant: {"a": 1}\ntool: result\nassistant:'


def test_variables_reach_the_template(stub: Server) -> None:
    given = {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"extra": "E"}}
    tokens = stub.post("/tokenize", given).json()["tokens"]
    assert stub.post("/detokenize", {"tokens": tokens}).json()["prompt"].endswith("assistant:E")


def test_several_answers_keep_apart(stub: Server) -> None:
    answer = ask(stub, "SAY hello END", n=3)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in answer["choices"]} == {"hello"}


def test_hints_that_change_no_token_are_taken_and_named_in_a_header(stub: Server) -> None:
    given = {
        "store": True,
        "service_tier": "flex",
        "prompt_cache_key": "k",
        "verbosity": "low",
        "prediction": {"type": "content", "content": "hello there"},
        "search_parameters": {"mode": "auto"},
        "web_search_options": {},
        "user": "me",  # stands in the log: that is an effect
        "prompt_cache_retention": None,  # as not given
    }
    plain = stub.post("/v1/chat/completions", body("SAY hello there END"))
    hinted = stub.post("/v1/chat/completions", body("SAY hello there END", **given))
    assert hinted.status_code == 200, hinted.text
    assert "x-without-effect" not in plain.headers
    assert hinted.headers["x-without-effect"] == (
        "prediction, prompt_cache_key, service_tier, store, verbosity, search_parameters,"
        " web_search_options"
    )
    messages = [one.json()["choices"][0]["message"] for one in (plain, hinted)]
    assert messages[0] == messages[1]


def test_both_names_of_the_same_limit_may_be_given_when_they_agree(stub: Server) -> None:
    answer = ask(stub, "FILL", max_tokens=3, max_completion_tokens=3)
    assert answer["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("stream", [False, True])
def test_functions_are_called_in_the_words_before_there_were_tools(
    stub: Server, stream: bool
) -> None:
    order = 'SAY <tool_call>{"name": "weather", "arguments": {"days": 2}}</tool_call> END'
    asked = {"role": "user", "content": order}
    given: Any = {"messages": [asked], "functions": [{"name": "weather"}], "stream": stream}
    response = stub.post("/v1/chat/completions", {**given, "function_call": "auto"})
    if stream:
        choices = [one for chunk in sse(response) for one in chunk["choices"]]
        deltas = [
            one["delta"]["function_call"] for one in choices if "function_call" in one["delta"]
        ]
        assert [one["name"] for one in deltas if "name" in one] == ["weather"]
        called = {"name": "weather", "arguments": "".join(one["arguments"] for one in deltas)}
        reason = choices[-1]["finish_reason"]
    else:
        (choice,) = response.json()["choices"]
        called, reason = choice["message"]["function_call"], choice["finish_reason"]
        assert "tool_calls" not in choice["message"]
    assert json.loads(called["arguments"]) == {"days": 2}
    assert reason == "function_call"
    turn = {"role": "assistant", "content": None, "function_call": called}
    result = {"role": "function", "name": "weather", "content": "SAY rain END"}
    again = stub.post(
        "/v1/chat/completions", {"messages": [{**asked, "content": "x"}, turn, result]}
    )
    assert again.json()["choices"][0]["message"]["content"] == "rain"
    both = {**given, "tools": [{"type": "function", "function": {"name": "weather"}}]}
    assert stub.post("/v1/chat/completions", both).json()["error"]["param"] == "functions"
