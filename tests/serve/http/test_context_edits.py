"""Edits of a long conversation that Anthropic's clients ask for, told to the model and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from tests.serve.http.servers import Server

LONG = "rain " * 16


@pytest.fixture(scope="module")
def client(stub: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=stub.address, api_key="none", max_retries=0) as found:
        yield found


def conversation(results: list[str], thought: str = "Hm.", city: str = "Ulm") -> list[Any]:
    """A question, calls with these results, and another question."""
    turns: list[Any] = [{"role": "user", "content": "SAY so END"}]
    for number, result in enumerate(results):
        use = {"type": "tool_use", "id": f"t{number}", "name": "f", "input": {"city": city}}
        thinking = {"type": "thinking", "thinking": thought, "signature": ""}
        returned = {"type": "tool_result", "tool_use_id": f"t{number}", "content": result}
        turns.append({"role": "assistant", "content": [thinking, use]})
        turns.append({"role": "user", "content": [returned]})
    return turns


def asked(turns: list[Any], *edits: Any) -> dict[str, Any]:
    tool = {"name": "f", "input_schema": {"type": "object"}}
    more = {"context_management": {"edits": list(edits)}} if edits else {}
    return {"model": "library", "messages": turns, "tools": [tool], **more}


def clear(keep: int, **fields: Any) -> dict[str, Any]:
    trigger = {"type": "tool_uses", "value": 0}
    kept = {"type": "tool_uses", "value": keep}
    return {"type": "clear_tool_uses_20250919", "trigger": trigger, "keep": kept, **fields}


def tokens(client: anthropic.Anthropic, body: dict[str, Any]) -> int:
    return client.beta.messages.count_tokens(**body).input_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_results_of_all_calls_but_the_last_are_cleared_and_told(
    client: anthropic.Anthropic, stream: bool
) -> None:
    body = asked(conversation([LONG, LONG, LONG]), clear(1))
    if stream:
        with client.beta.messages.stream(**body, max_tokens=20) as events:
            found = events.get_final_message()
    else:
        found = client.beta.messages.create(**body, max_tokens=20)
    assert found.context_management is not None
    (edit,) = found.context_management.applied_edits
    assert edit.type == "clear_tool_uses_20250919"
    assert edit.cleared_tool_uses == 2
    counted = client.beta.messages.count_tokens(**body)
    assert counted.context_management is not None
    before = counted.context_management.original_input_tokens
    assert before - counted.input_tokens == edit.cleared_input_tokens > 0
    assert before == tokens(client, asked(conversation([LONG] * 3)))
    told = found.usage.input_tokens + (found.usage.cache_read_input_tokens or 0)
    assert told == counted.input_tokens


def test_an_edit_is_made_where_the_conversation_is_long_and_it_saves_enough(
    client: anthropic.Anthropic,
) -> None:
    turns = conversation([LONG, LONG])
    whole = tokens(client, asked(turns))
    for unmade in (
        {"type": "clear_tool_uses_20250919"},  # below 100,000 tokens
        clear(2),
        clear(0, trigger={"type": "input_tokens", "value": whole}),
        clear(0, clear_at_least={"type": "input_tokens", "value": whole}),
        clear(0, exclude_tools=["f"]),
        {"type": "clear_thinking_20251015", "keep": "all"},
    ):
        assert tokens(client, asked(turns, unmade)) == whole
    made = tokens(client, asked(turns, clear(0)))
    assert made < whole
    assert tokens(client, asked(turns, clear(0, clear_tool_inputs=True))) < made


def test_thoughts_of_the_last_answers_stay(client: anthropic.Anthropic) -> None:
    turns = conversation(["a", "b", "c"], thought=LONG)
    counts = [
        tokens(client, asked(turns, {"type": "clear_thinking_20251015", **keep}))
        for keep in (
            {},
            {"keep": {"type": "thinking_turns", "value": 2}},
            {"keep": {"type": "thinking_turns", "value": 3}},
        )
    ]
    assert counts[0] < counts[1] < counts[2] == tokens(client, asked(turns))
