"""Custom tools, whose input is free text, and choices that allow some of the tools alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from tests.serve.http.servers import Server

TEXT = 'print("é\\n")\n'
REGEX: Any = {"type": "grammar", "syntax": "regex", "definition": "[a-z]{3}"}
CODE: Any = {"type": "custom", "name": "code", "description": "run it"}
CHAT_CODE: Any = {"type": "custom", "custom": {"name": "code", "description": "run it"}}
WEATHER: Any = {"type": "function", "function": {"name": "weather"}}


def called(name: str, arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


ORDER = f"SAY I run it. {called('code', {'input': TEXT})} END"


@pytest.fixture(scope="module")
def client(stub: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=stub.address + "/v1", api_key="none", max_retries=0) as found:
        yield found


def test_a_response_has_the_input_of_a_custom_tool_as_text(client: openai.OpenAI) -> None:
    common: Any = {"model": "library", "input": ORDER, "tools": [CODE]}
    found = client.responses.create(**common)
    call: Any = found.output[1]
    assert (call.type, call.name, call.input) == ("custom_tool_call", "code", TEXT)
    events: Any = list(client.responses.create(**common, stream=True))
    deltas = [one.delta for one in events if one.type == "response.custom_tool_call_input.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == TEXT
    (done,) = [one for one in events if one.type == "response.custom_tool_call_input.done"]
    assert done.input == TEXT
    assert events[-1].response.output[1].input == TEXT
    result: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "1"}
    after: Any = {**common, "previous_response_id": found.id, "input": [result]}
    kept = client.responses.create(**after)
    back: Any = [{"role": "user", "content": ORDER}, *(one.to_dict() for one in found.output)]
    whole = client.responses.create(**{**common, "input": [*back, result]})
    assert kept.usage is not None
    assert whole.usage is not None
    assert kept.usage.input_tokens == whole.usage.input_tokens


def test_a_chat_has_the_input_of_a_custom_tool_as_text(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": ORDER}]
    common: Any = {"model": "library", "messages": messages, "tools": [CHAT_CODE, WEATHER]}
    (choice,) = client.chat.completions.create(**common).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls
    call: Any = choice.message.tool_calls[0]
    assert (call.type, call.custom.name, call.custom.input) == ("custom", "code", TEXT)
    back = {"role": "tool", "tool_call_id": call.id, "content": "1"}
    messages += [choice.message.to_dict(exclude_none=True), back]
    assert client.chat.completions.create(**common).choices


def test_a_custom_tool_that_is_named_gets_the_whole_answer(stub: Server) -> None:
    named = {"type": "custom", "name": "code"}
    body: Any = {"input": "SAY abc END", "tools": [{**CODE, "format": REGEX}], "tool_choice": named}
    reply = stub.post("/v1/responses", body)
    (item,) = reply.json()["output"]
    assert (item["type"], item["input"].strip()) == ("custom_tool_call", "abc")
    assert "tools.format" not in reply.headers.get("x-without-effect", "")
    free = stub.post("/v1/responses", {**body, "tool_choice": "auto"})
    assert "tools.format" in free.headers["x-without-effect"]
    lark = {**CODE, "format": {**REGEX, "syntax": "lark"}}
    refused = stub.post("/v1/responses", {**body, "tools": [lark]})
    assert refused.json()["error"]["param"] == "tools"
    told = stub.post("/v1/responses", {**body, "tools": [lark], "tool_choice": "auto"})
    assert "tools.format" in told.headers["x-without-effect"]
    other = {**body, "tool_choice": {"type": "function", "name": "code"}}
    assert stub.post("/v1/responses", other).json()["error"]["param"] == "tool_choice"


@pytest.mark.parametrize("stream", [False, True])
def test_no_call_of_a_tool_that_is_not_allowed_gets_through(stub: Server, stream: bool) -> None:
    order = f"SAY {called('weather', {})}{called('time', {'zone': 1})}{called('nothing', {})} END"
    tools = [{"type": "function", "function": {"name": name}} for name in ("weather", "time")]
    allowed = {"mode": "auto", "tools": [tools[1]]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    messages = [{"role": "user", "content": order}]
    body: Any = {"messages": messages, "tools": tools, "tool_choice": choice, "stream": stream}
    reply = stub.post("/v1/chat/completions", body)
    assert reply.status_code == 200, reply.text
    assert "weather" not in reply.text
    assert "nothing" not in reply.text
    assert '"time"' in reply.text
    plain = [{"type": "function", "name": name} for name in ("weather", "time")]
    given = {"type": "allowed_tools", "mode": "auto", "tools": [plain[1], {"type": "web_search"}]}
    body = {"input": order, "tools": plain, "tool_choice": given, "store": False}
    (item,) = stub.post("/v1/responses", body).json()["output"]
    assert (item["type"], item["name"]) == ("function_call", "time")
