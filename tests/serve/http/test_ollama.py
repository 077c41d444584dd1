"""Ollama's API, as its clients send and read it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.serve.http.servers import Server

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>'
ORDER = f"SAY <think>Hm.</think>I look. {CALL} END"
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def asked(content: str, **fields: Any) -> dict[str, Any]:
    return {"model": "library:latest", "messages": [{"role": "user", "content": content}], **fields}


def lines_of(stub: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = stub.post(path, body)
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def test_an_answer_has_thoughts_text_and_calls(stub: Server) -> None:
    found = stub.post("/api/chat", asked(ORDER, tools=[WEATHER], stream=False)).json()
    message = found["message"]
    assert (message["thinking"], message["content"]) == ("Hm.", "I look.")
    assert message["tool_calls"] == [
        {"function": {"name": "weather", "arguments": {"city": "Ulm"}}}
    ]
    assert (found["model"], found["done"], found["done_reason"]) == ("library", True, "stop")
    assert found["eval_count"] > 5
    assert found["total_duration"] >= found["eval_duration"] > 0
    result = {"role": "tool", "tool_name": "weather", "content": "dry"}
    again = asked(ORDER, tools=[WEATHER], stream=False)
    again["messages"] += [message, result]
    told = stub.post("/api/chat", again).json()
    plain = [
        again["messages"][0],
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": "a", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "dry"},
    ]
    same = stub.post("/tokenize", {"messages": plain, "tools": [WEATHER]}).json()
    assert told["prompt_eval_count"] == same["count"]


def test_replies_stream_line_by_line_unless_they_are_asked_for_whole(stub: Server) -> None:
    lines = lines_of(stub, "/api/chat", asked(ORDER, tools=[WEATHER]))
    messages = [line["message"] for line in lines]
    assert "".join(one["content"] for one in messages) == "I look."
    assert "".join(one.get("thinking", "") for one in messages) == "Hm."
    calls = [call for one in messages for call in one.get("tool_calls", [])]
    assert [one["function"]["arguments"] for one in calls] == [{"city": "Ulm"}]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1]["done_reason"] == "stop"


@pytest.mark.parametrize("raw", [False, True])
def test_a_prompt_is_answered_or_continued_as_it_stands(stub: Server, *, raw: bool) -> None:
    body = {"model": "library", "prompt": "SAY one two three END", "raw": raw}
    lines = lines_of(stub, "/api/generate", body)
    assert "".join(line["response"] for line in lines) == "one two three"
    whole = stub.post("/api/generate", {**body, "stream": False}).json()
    assert whole["response"] == "one two three"
    shorter = {"stream": False, "options": {"num_predict": 1}}
    assert stub.post("/api/generate", {**body, **shorter}).json()["done_reason"] == "length"
    system = {**body, "stream": False, "system": "Be brief."}
    longer = stub.post("/api/generate", system).json()["prompt_eval_count"]
    assert (longer > whole["prompt_eval_count"]) is not raw


def test_a_request_without_a_prompt_only_wants_the_model_to_be_there(stub: Server) -> None:
    found = stub.post("/api/generate", {"model": "library"}).json()
    assert (found["done"], found["done_reason"], found["response"]) == (True, "load", "")
    found = stub.post("/api/chat", {"model": "library", "messages": [], "keep_alive": 0}).json()
    assert found["done_reason"] == "unload"
    assert stub.post("/api/generate", {"model": "other"}).status_code == 404


def test_options_of_the_machine_are_named_and_others_obeyed_or_refused(stub: Server) -> None:
    options = {"num_ctx": 2048, "repeat_penalty": 1.1, "repeat_last_n": 64, "top_k": 5, "seed": 1}
    body = {**asked("SAY a END", stream=False, keep_alive="5m"), "options": options}
    told = stub.post("/api/chat", body).headers["x-without-effect"].split(", ")
    assert told == ["keep_alive", "options.num_ctx", "options.repeat_last_n"]
    for name, value in (("mirostat", 1), ("typical_p", 0.5), ("top_k", -2), ("nothing", 1)):
        refused = stub.post("/api/chat", {**body, "options": {name: value}})
        assert refused.status_code == 400
        assert name in refused.json()["error"]


def test_options_beside_the_options_are_obeyed(stub: Server) -> None:
    body = asked("SAY one two three END", stream=False, max_output_tokens=1, tool_choice="none")
    assert stub.post("/api/chat", body).json()["done_reason"] == "length"
    within = {**body, "options": {"num_predict": 50}}
    assert stub.post("/api/chat", within).json()["done_reason"] == "stop"
    assert stub.post("/api/chat", {**body, "tool_choice": "required"}).status_code == 400


def test_a_format_is_json_or_a_schema(stub: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for form in ("json", schema, ""):
        body = asked('SAY {"a": 1} END', stream=False, format=form)
        assert stub.post("/api/chat", body).json()["message"]["content"] == '{"a": 1}'
    wrong = stub.post("/api/chat", asked("x", format="xml"))
    assert wrong.status_code == 400
    assert wrong.json()["error"].startswith("format")


def test_a_body_is_json_whatever_it_is_called_unless_a_page_sends_it(stub: Server) -> None:
    body = json.dumps(asked("SAY a END", stream=False)).encode()
    address, form = stub.address + "/api/chat", "application/x-www-form-urlencoded"
    for headers in ({}, {"Content-Type": form}):
        assert httpx.post(address, content=body, headers=headers).status_code == 200
        page = {**headers, "Origin": "http://elsewhere.example"}
        assert httpx.post(address, content=body, headers=page).status_code == 400


def test_models_vectors_and_the_version_are_told(stub: Server) -> None:
    (model,) = stub.get("/api/tags").json()["models"]
    assert model["name"] == "library"
    assert len(model["digest"]) == 64
    assert stub.get("/api/ps").json()["models"] == [model]
    shown = stub.post("/api/show", {"model": "library:latest"}).json()
    assert {"completion", "tools"} <= set(shown["capabilities"])
    assert shown["model_info"]["library.context_length"] == model["context_length"]
    assert stub.post("/api/pull", {"name": "library"}).json() == {"status": "success"}
    for path in ("/api/show", "/api/pull"):
        assert stub.post(path, {"model": "other"}).status_code == 404
    assert stub.get("/api/version").json()["version"]
    texts = ["one", "one two three"]
    vectors = stub.post("/api/embed", {"model": "library", "input": texts}).json()
    same = stub.post("/v1/embeddings", {"input": texts}).json()["data"]
    assert vectors["embeddings"] == [one["embedding"] for one in same]
    one = stub.post("/api/embeddings", {"model": "library", "prompt": "one"}).json()
    assert one["embedding"] == vectors["embeddings"][0]
    assert stub.post("/api/embed", {"model": "library", "input": []}).json()["embeddings"] == []
