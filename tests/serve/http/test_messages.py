"""`/v1/messages` through Anthropic's own client, on an engine that says what it is told."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from tests.serve.http.servers import Server, stub_server

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>'
WEATHER: Any = {
    "name": "weather",
    "description": "of a place",
    "input_schema": {"type": "object", "properties": {}},
}
ORDER = f"SAY <think>Hm.</think>I look. {CALL} END"
COMMON: Any = {"model": "library", "max_tokens": 90}


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def client(stub: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=stub.address, api_key="none", max_retries=0) as found:
        yield found


def test_a_conversation_is_answered_in_blocks(client: anthropic.Anthropic) -> None:
    found = client.messages.create(
        **COMMON,
        system=[{"type": "text", "text": "Be brief."}],
        messages=user("SAY hello there END"),
    )
    (block,) = found.content
    assert block.type == "text"
    assert block.text.strip() == "hello there"
    assert (found.role, found.stop_reason, found.stop_sequence) == ("assistant", "end_turn", None)
    assert found.usage.output_tokens > 1
    counted = client.messages.count_tokens(
        model="library", system="Be brief.", messages=user("SAY hello there END")
    )
    cached = found.usage.cache_read_input_tokens or 0
    assert counted.input_tokens == found.usage.input_tokens + cached


@pytest.mark.parametrize("content", ["Be kind.", [{"type": "text", "text": "Be kind."}]])
def test_the_system_may_speak_within_the_conversation(stub: Server, content: Any) -> None:
    """As it does in Claude Code's requests since 2.1."""
    said = [*user("hi"), {"role": "system", "content": content}]
    counts = [
        stub.post("/v1/messages/count_tokens", {"model": "library", "messages": one}).json()
        for one in (user("hi"), said)
    ]
    written = stub.post("/tokenize", {"prompt": "system: Be kind.\n", "add_special_tokens": False})
    more = counts[1]["input_tokens"] - counts[0]["input_tokens"]
    assert more == len(written.json()["tokens"])
    assert stub.post("/v1/messages?beta=true", {**COMMON, "messages": said}).status_code == 200


def test_thoughts_text_and_tools_are_blocks_in_their_order(client: anthropic.Anthropic) -> None:
    found = client.messages.create(**COMMON, messages=user(ORDER), tools=[WEATHER])
    thought, text, call = found.content
    assert thought.type == "thinking"
    assert thought.thinking == "Hm."
    assert text.type == "text"
    assert text.text == "I look."
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("weather", {"city": "Ulm"})
    assert found.stop_reason == "tool_use"


def test_a_stream_has_the_documented_events_and_builds_the_same_message(
    client: anthropic.Anthropic,
) -> None:
    whole = client.messages.create(**COMMON, messages=user(ORDER), tools=[WEATHER])
    events = list(
        client.messages.create(**COMMON, messages=user(ORDER), tools=[WEATHER], stream=True)
    )
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    kinds = [kind for kind, _ in groupby(event.type for event in events)]
    assert kinds == ["message_start", *block * 3, "message_delta", "message_stop"]
    with client.messages.stream(**COMMON, messages=user(ORDER), tools=[WEATHER]) as stream:
        built = stream.get_final_message()
    assert built.stop_reason == whole.stop_reason

    def content(message: Any) -> list[Any]:
        found = []
        for one in message.content:
            shown = one.to_dict()
            found.append({k: v for k, v in shown.items() if k != "id"})
        return found

    assert content(built) == content(whole)


@pytest.mark.parametrize("most", range(8, 40, 4))
def test_a_call_that_is_cut_off_is_the_same_whole_and_streamed(
    client: anthropic.Anthropic, most: int
) -> None:
    """The client makes of the pieces what it can."""
    order = 'SAY <tool_call>{"name": "weather", "arguments": {"city": "Ulm", "days": [1, 2 END'
    asked: Any = {"model": "library", "max_tokens": most, "tools": [WEATHER]}
    whole = client.messages.create(**asked, messages=user(order))
    with client.messages.stream(**asked, messages=user(order)) as stream:
        built = stream.get_final_message()
    inputs = [[getattr(one, "input", None) for one in each.content] for each in (whole, built)]
    assert inputs[0] == inputs[1]
    assert whole.stop_reason == built.stop_reason
    assert built.usage.output_tokens == whole.usage.output_tokens


def test_what_tools_returned_and_earlier_blocks_are_the_conversation_so_far(
    client: anthropic.Anthropic, stub: Server
) -> None:
    first = client.messages.create(**COMMON, messages=user(ORDER), tools=[WEATHER])
    call = first.content[-1]
    assert call.type == "tool_use"
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    more: Any = {"type": "text", "text": "And?"}
    given: Any = [
        *user("x"),
        {"role": "assistant", "content": [block.to_dict() for block in first.content]},
        {"role": "user", "content": [result, more]},
    ]
    found = client.messages.count_tokens(model="library", messages=given, tools=[WEATHER])
    called = {"name": "weather", "arguments": '{"city": "Ulm"}'}
    chat = [
        {"role": "user", "content": "x"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning": "Hm.",
            "tool_calls": [{"id": call.id, "type": "function", "function": called}],
        },
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
        {"role": "user", "content": "And?"},
    ]
    tools = [{"type": "function", "function": {"name": "weather"}}]
    same = stub.post("/tokenize", {"messages": chat, "tools": tools}).json()
    assert found.input_tokens == same["count"]


def test_it_ends_where_there_is_no_room(client: anthropic.Anthropic) -> None:
    short = client.messages.create(model="library", max_tokens=2, messages=user("SAY a b c d END"))
    assert short.stop_reason == "max_tokens"


def test_the_last_turn_may_be_the_beginning_of_the_answer(client: anthropic.Anthropic) -> None:
    begun: Any = [*user("SAY b c END"), {"role": "assistant", "content": "a"}]
    counted = client.messages.count_tokens(model="library", messages=begun)
    opened = client.messages.count_tokens(model="library", messages=user("SAY b c END"))
    assert counted.input_tokens > opened.input_tokens
    assert client.messages.create(**COMMON, messages=begun).content


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"tools": [{"type": "computer_20250124", "name": "computer"}]},
        {"tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "tool"}},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"messages": user("x " * 3000)},
    ],
    ids=str,
)
def test_what_is_not_served_is_refused_in_that_apis_shape(
    client: anthropic.Anthropic, fields: Any
) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**{**COMMON, "messages": user("x"), **fields})
    body: Any = caught.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["message"]


def test_no_such_model(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="other", max_tokens=1, messages=user("x"))


def test_hints_are_named_and_nothing_is_swallowed(stub: Server) -> None:
    given = {**COMMON, "messages": user("x"), "service_tier": "auto"}
    response = stub.post("/v1/messages", given)
    assert response.headers["x-without-effect"] == "service_tier"
    compacted = {"edits": [{"type": "compact_20260112"}]}
    refused = stub.post("/v1/messages", {**given, "context_management": compacted})
    assert refused.status_code == 400
    assert "'compact_20260112' is not served here" in refused.json()["error"]["message"]
    unknown = stub.post("/v1/messages", {**given, "wisdom": 1})
    assert unknown.status_code == 400
    assert "wisdom" in unknown.json()["error"]["message"]


@pytest.mark.slow
def test_a_key_goes_in_that_apis_header_and_an_error_ends_a_stream(model: Path) -> None:
    with stub_server(model, api_keys=["secret"], request_timeout_seconds=0.5) as server:
        bad = anthropic.Anthropic(base_url=server.address, api_key="wrong", max_retries=0)
        with bad, pytest.raises(anthropic.AuthenticationError):
            bad.messages.create(**COMMON, messages=user("x"))
        with anthropic.Anthropic(base_url=server.address, api_key="secret") as good:
            assert good.messages.create(**COMMON, messages=user("SAY a END")).content
        answer = httpx.post(
            server.address + "/v1/messages",
            headers={"x-api-key": "secret"},
            json={**COMMON, "messages": user("SLOW FILL"), "stream": True},
        )
        last = answer.text.strip().split("\n\n")[-1]
        assert last.startswith("event: error\n")
        assert "timeout_error" in last


def test_documents_and_search_results_are_told_as_texts(stub: Server) -> None:
    document = {"type": "document", "source": {"type": "text", "data": "rain"}, "title": "T"}
    found = {"type": "search_result", "source": "s", "title": "t",
             "content": [{"type": "text", "text": "sun"}]}  # fmt: skip
    cited = {**document, "citations": {"enabled": True}}
    texts = [{"type": "text", "text": one} for one in ("T\nrain", "t\ns\nsun")]
    body: dict[str, Any] = {"model": "library", "max_tokens": 2}
    counts = []
    for blocks in ([cited, found], texts):
        messages = [{"role": "user", "content": blocks}]
        response = stub.post("/v1/messages", {**body, "messages": messages})
        usage = response.json()["usage"]
        counts.append(usage["input_tokens"] + usage["cache_read_input_tokens"])
        told = "messages.citations" in response.headers.get("x-without-effect", "")
        assert told == (blocks[0] is cited)
    assert counts[0] == counts[1]
    pdf = {**document, "source": {"type": "base64", "media_type": "application/pdf", "data": ""}}
    messages = [{"role": "user", "content": [pdf]}]
    assert stub.post("/v1/messages", {**body, "messages": messages}).status_code == 400


def test_tools_without_a_schema_are_let_go_or_refused_with_the_reason(stub: Server) -> None:
    body: dict[str, Any] = {"model": "library", "max_tokens": 2}
    body["messages"] = [{"role": "user", "content": "x"}]
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    response = stub.post("/v1/messages", {**body, "tools": [search]})
    assert response.status_code == 200, response.text
    assert "tools.web_search_20250305" in response.headers["x-without-effect"]
    shell = {"type": "bash_20250124", "name": "bash"}
    refused = stub.post("/v1/messages", {**body, "tools": [shell]})
    assert "give it as a custom tool" in refused.json()["error"]["message"]
