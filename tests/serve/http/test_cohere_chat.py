"""Cohere's `/v2/chat`, as its client sends and reads it."""

from __future__ import annotations

import json
from typing import Any

from tests.serve.http.servers import Server

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>'
ORDER = f"SAY <think>Hm.</think>I look. {CALL} END"
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def asked(content: str, **fields: Any) -> dict[str, Any]:
    return {"model": "library", "messages": [{"role": "user", "content": content}], **fields}


def test_an_answer_has_thoughts_text_and_calls(stub: Server) -> None:
    found = stub.post("/v2/chat", asked(ORDER, tools=[WEATHER])).json()
    thought, text = found["message"]["content"]
    assert (thought, text) == (
        {"type": "thinking", "thinking": "Hm."},
        {"type": "text", "text": "I look."},
    )
    (call,) = found["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Ulm"}
    assert found["finish_reason"] == "TOOL_CALL"
    assert found["usage"]["tokens"]["output_tokens"] > 5
    back = {"role": "tool", "tool_call_id": call["id"]}
    documents = [{"type": "document", "document": {"data": {"rain": "no"}}}]
    messages = [
        {"role": "user", "content": ORDER},
        {"role": "assistant", "tool_plan": "I look.", "tool_calls": [call], "citations": []},
        {**back, "content": documents},
    ]
    again = stub.post("/v2/chat", {"messages": messages, "tools": [WEATHER]})
    assert again.status_code == 200, again.text
    plain = [
        *messages[:1],
        {**messages[1], "content": "I look."},
        {**back, "content": '{"rain": "no"}'},
    ]
    same = stub.post("/tokenize", {"messages": plain, "tools": [WEATHER]}).json()
    assert again.json()["usage"]["tokens"]["input_tokens"] == same["count"]


def test_a_stream_builds_the_same_message(stub: Server) -> None:
    lines = stub.post("/v2/chat", asked(ORDER, tools=[WEATHER], stream=True)).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    names = [line[7:] for line in lines if line.startswith("event: ")]
    assert names == [one["type"] for one in events]
    assert list(dict.fromkeys(names)) == [
        "message-start", "content-start", "content-delta", "content-end",
        "tool-call-start", "tool-call-delta", "tool-call-end", "message-end",
    ]  # fmt: skip
    contents = [
        one["delta"]["message"]["content"] for one in events if one["type"] == "content-delta"
    ]
    assert "".join(one.get("text", "") for one in contents) == "I look."
    assert "".join(one.get("thinking", "") for one in contents) == "Hm."
    calls = [
        one["delta"]["message"]["tool_calls"] for one in events if one["type"] == "tool-call-delta"
    ]
    assert json.loads("".join(one["function"]["arguments"] for one in calls)) == {"city": "Ulm"}
    assert events[-1]["delta"]["finish_reason"] == "TOOL_CALL"


def test_sampling_is_asked_for_in_other_words(stub: Server) -> None:
    body = asked("SAY one two three END", stop_sequences=["two"], k=3, p=0.9, logprobs=True, seed=1)
    found = stub.post("/v2/chat", {**body, "max_tokens": 1}).json()
    assert found["finish_reason"] == "MAX_TOKENS"
    (one,) = found["logprobs"]
    assert len(one["token_ids"]) == len(one["logprobs"]) == 1
    cited = stub.post("/v2/chat", {**body, "citation_options": {"mode": "FAST"}})
    assert "citation_options" in cited.headers["x-without-effect"]
    for field, value in (
        ("safety_mode", "STRICT"), ("k", -1), ("connectors", [{"id": "web"}]),
        ("documents", ["a"]), ("thinking", {"type": "enabled", "token_budget": 5}),
    ):  # fmt: skip
        refused = stub.post("/v2/chat", {**body, field: value})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == field


def test_the_older_words_ask_and_tell_the_same(stub: Server) -> None:
    history = [{"role": "USER", "message": "hi"}, {"role": "CHATBOT", "message": "hello"}]
    older = {"message": "SAY one two END", "chat_history": history, "preamble": "Be brief."}
    whole = stub.post("/v1/chat", older).json()
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "SAY one two END"},
    ]
    newer = stub.post("/v2/chat", {"messages": messages}).json()
    assert [{"type": "text", "text": whole["text"]}] == newer["message"]["content"]
    assert whole["meta"]["tokens"] == newer["usage"]["tokens"]
    assert whole["finish_reason"] == "COMPLETE"
    assert [one["message"] for one in whole["chat_history"][2:]] == [
        older["message"],
        whole["text"],
    ]
    lines = stub.post("/v1/chat", {**older, "stream": True}).text.splitlines()
    start, *grown, end = map(json.loads, lines)
    assert (start["event_type"], end["event_type"]) == ("stream-start", "stream-end")
    assert "".join(one["text"] for one in grown) == end["response"]["text"] == whole["text"]
    limited = stub.post("/v1/chat", {**older, "max_tokens": 1}).json()
    assert limited["finish_reason"] == "MAX_TOKENS"


def test_what_the_older_words_cannot_be_read_as_is_refused(stub: Server) -> None:
    tool = {"name": "f", "description": "d", "parameter_definitions": {}}
    for wrong in ({"tools": [tool]}, {"message": 3}, {"chat_history": [3]}, {"connectors": [{}]}):
        response = stub.post("/v1/chat", {"message": "SAY a END", **wrong})
        assert response.status_code == 400, response.text
    assert stub.post("/v1/chat", {}).status_code == 400
