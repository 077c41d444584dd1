"""`/v1/responses` through the official client, on an engine that says what it is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import openai
import pytest
from tests.serve.http.servers import Server

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>'
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "of a place",
    "parameters": {"type": "object", "properties": {}},
    "strict": False,
}
ORDER = f"SAY <think>Hm.</think>I look. {CALL} END"


@pytest.fixture(scope="module")
def client(stub: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=stub.address + "/v1", api_key="none", max_retries=0) as found:
        yield found


def test_a_text_is_answered_with_what_the_client_reads(client: openai.OpenAI) -> None:
    found = client.responses.create(
        model="library", input="SAY hello there END", instructions="Be brief.",
        metadata={"a": "b"}, store=True, temperature=0.5,
    )  # fmt: skip
    assert found.output_text.strip() == "hello there"
    assert found.status == "completed"
    assert found.usage is not None
    assert found.usage.total_tokens == found.usage.input_tokens + found.usage.output_tokens
    assert found.metadata == {"a": "b"}
    assert found.temperature == 0.5
    assert [item.type for item in found.output] == ["message"]


def test_thoughts_text_and_calls_are_items_in_their_order(client: openai.OpenAI) -> None:
    found = client.responses.create(model="library", input=ORDER, tools=[WEATHER])
    thought, text, call = found.output
    assert thought.type == "reasoning"
    assert thought.content
    assert thought.content[0].text == "Hm."
    assert text.type == "message"
    assert found.output_text == "I look."
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Ulm"})
    assert found.usage is not None
    assert 0 < found.usage.output_tokens_details.reasoning_tokens < found.usage.output_tokens


def test_a_stream_builds_the_same_response(client: openai.OpenAI) -> None:
    common: Any = {"model": "library", "input": ORDER, "tools": [WEATHER]}
    whole = client.responses.create(**common)
    events = list(client.responses.create(**common, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [kind for kind, _ in groupby(event.type for event in events)]
    item = ["response.output_item.added", "response.content_part.added"]
    end = ["response.content_part.done", "response.output_item.done"]
    assert kinds == [
        "response.created",
        "response.in_progress",
        *item, "response.reasoning_text.delta", "response.reasoning_text.done", *end,
        *item, "response.output_text.delta", "response.output_text.done", *end,
        item[0], "response.function_call_arguments.delta",
        "response.function_call_arguments.done", end[1],
        "response.completed",
    ]  # fmt: skip
    last: Any = events[-1]
    ours = [{**one.to_dict(), "id": "", "call_id": ""} for one in last.response.output]
    assert ours == [{**one.to_dict(), "id": "", "call_id": ""} for one in whole.output]
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == last.response.output


def test_the_clients_own_reader_of_streams_is_satisfied(client: openai.OpenAI) -> None:
    with client.responses.stream(model="library", input=ORDER, tools=[WEATHER]) as stream:
        deltas = [e.delta for e in stream if e.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == "I look."


def test_an_answer_given_back_is_the_conversation_so_far(
    client: openai.OpenAI, stub: Server
) -> None:
    first = client.responses.create(model="library", input=ORDER, tools=[WEATHER])
    (call,) = [item for item in first.output if item.type == "function_call"]
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "SAY ok END"}
    given: Any = [{"role": "user", "content": "x"}, *(i.to_dict() for i in first.output), result]
    second = client.responses.create(model="library", input=given, tools=[WEATHER])
    called = {"name": "weather", "arguments": call.arguments}
    chat = [
        {"role": "user", "content": "x"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning": "Hm.",
            "tool_calls": [{"id": call.call_id, "type": "function", "function": called}],
        },
        {"role": "tool", "tool_call_id": call.call_id, "content": "SAY ok END"},
    ]
    tools = [{"type": "function", "function": {"name": "weather"}}]
    same = stub.post("/tokenize", {"messages": chat, "tools": tools}).json()
    assert second.usage is not None
    assert second.usage.input_tokens == same["count"]


def test_a_cut_off_answer_is_incomplete(client: openai.OpenAI) -> None:
    found = client.responses.create(model="library", input="SAY a b c d e END", max_output_tokens=2)
    assert found.status == "incomplete"
    assert found.incomplete_details is not None
    assert found.incomplete_details.reason == "max_output_tokens"
    events = client.responses.create(
        model="library", input="SAY a b c d END", max_output_tokens=2, stream=True
    )
    assert list(events)[-1].type == "response.incomplete"


def test_log_probabilities_stand_beside_the_text(client: openai.OpenAI) -> None:
    common: Any = {"model": "library", "input": "SAY hello there END", "top_logprobs": 1}
    found = client.responses.create(**common, include=["message.output_text.logprobs"])
    (message,) = found.output
    assert message.type == "message"
    (content,) = message.content
    assert content.type == "output_text"
    assert content.logprobs
    assert "".join(one.token for one in content.logprobs).strip() == "hello there"
    events = client.responses.create(**common, stream=True)
    streamed = [e.logprobs for e in events if e.type == "response.output_text.delta"]
    assert sum(map(len, streamed)) == len(content.logprobs)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"background": True, "store": False}, "background"),
        ({"truncation": "middle"}, "truncation"),
        ({"input": "x " * 3000}, "input"),
        ({"tools": [{"type": "computer_use_preview"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"extra_body": {"n": 2}}, "n"),
        ({"max_output_tokens": 5000}, "input"),
    ],
)
def test_what_is_not_kept_here_is_refused_by_its_name(
    client: openai.OpenAI, fields: dict[str, Any], param: str
) -> None:
    given: Any = {"model": "library", "input": "x", **fields}
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**given)
    if caught.value.param is None:  # it is about several fields
        assert param in caught.value.message
    else:
        assert caught.value.param == param


def test_tools_that_a_server_would_run_are_named_and_not_offered(stub: Server) -> None:
    tools = [WEATHER, {"type": "web_search", "external_web_access": False}]
    body = {"input": "SAY a END", "tools": tools, "client_metadata": {"thread": "1"}}
    response = stub.post("/v1/responses", {**body, "include": ["file_search_call.results"]})
    told = set(response.headers["x-without-effect"].split(", "))
    assert {"tools.web_search", "client_metadata", "include"} <= told
    forced = {**body, "tools": tools[1:], "tool_choice": "required"}
    assert stub.post("/v1/responses", forced).status_code == 400


def test_functions_of_a_namespace_are_called_by_both_names(stub: Server) -> None:
    group = {"type": "namespace", "name": "sky", "tools": [WEATHER]}
    call = CALL.replace("weather", "sky.weather")
    body: Any = {"input": f"SAY {call} END", "tools": [group]}
    (item,) = stub.post("/v1/responses", body).json()["output"]
    assert (item["namespace"], item["name"]) == ("sky", "weather")
    stream = stub.post("/v1/responses", {**body, "stream": True}).text.splitlines()
    events = [json.loads(line[6:]) for line in stream if line.startswith("data: {")]
    done = next(one for one in events if one["type"].endswith("arguments.done"))
    assert (done["namespace"], done["name"]) == ("sky", "weather")
    back = {"type": "function_call_output", "call_id": item["call_id"], "output": "rain"}
    again = stub.post("/v1/responses", {**body, "input": [item, back]})
    assert again.status_code == 200, again.text


def test_a_conversation_too_long_loses_its_beginning_where_that_is_asked_for(stub: Server) -> None:
    body: Any = {"input": "one two " * 400, "max_output_tokens": 16}
    assert stub.post("/v1/responses", body).json()["error"]["code"] == "context_length_exceeded"
    found = stub.post("/v1/responses", {**body, "truncation": "auto"}).json()
    assert found["usage"]["input_tokens"] == 256 - 16
    assert found["truncation"] == "auto"


def test_the_tokens_of_an_input_are_counted(client: openai.OpenAI) -> None:
    given: Any = {"model": "library", "input": "SAY a END", "tools": [WEATHER]}
    counted = client.responses.input_tokens.count(**given)
    usage = client.responses.create(**given).usage
    assert usage is not None
    assert counted.input_tokens == usage.input_tokens


def test_the_model_is_told_of_the_allowed_tools_alone(stub: Server) -> None:
    tools = [WEATHER, {**WEATHER, "name": "time"}]
    named: Any = {"type": "allowed_tools", "mode": "auto", "tools": [tools[1]]}
    body: Any = {"input": "x", "tools": tools, "max_output_tokens": 16}
    counts = [
        stub.post("/v1/responses/input_tokens", {**body, **more}).json()["input_tokens"]
        for more in ({"tool_choice": named}, {"tools": tools[1:]}, {})
    ]
    assert counts[0] == counts[1] < counts[2]
    told = stub.post("/v1/responses", {**body, "tool_choice": named}).json()
    assert (told["tool_choice"], told["tools"]) == (named, tools)
    unknown = {**named, "tools": [{"type": "function", "name": "nothing"}]}
    refused = stub.post("/v1/responses", {**body, "tool_choice": unknown})
    assert refused.json()["error"]["param"] == "tool_choice"


def test_hints_are_named(stub: Server) -> None:
    given = {"text": {"verbosity": "low"}, "reasoning": {"summary": "auto"}}
    response = stub.post("/v1/responses", {"model": "library", "input": "x", **given})
    assert response.status_code == 200
    assert response.headers["x-without-effect"] == "text.verbosity, reasoning.summary"
