"""Thoughts and calls between marks that are special tokens, which text leaves out elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.serve.http.servers import TEMPLATE, Server, sse, stub_server
from tests.serve.http.test_infill import with_tokens

HARMONY = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|constrain|>")
SIGNS = "{# <|channel|>analysis <|channel|>commentary #}"
WEATHER = {"type": "function", "function": {"name": "weather"}}
THOUGHT = "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant"
CALL = (
    '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Ulm"}<|call|>'
)


@pytest.fixture(scope="module")
def harmony(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = with_tokens(model, tmp_path_factory.mktemp("harmony") / "library", [*HARMONY])
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": SIGNS + TEMPLATE}))
    with stub_server(folder) as server:
        yield server


def messages(server: Server, said: str, **fields: Any) -> list[dict[str, Any]]:
    """The answer whole, and put together from its stream."""
    body = {
        "messages": [{"role": "user", "content": f"SAY {said} END"}],
        **fields,
    }
    whole = server.post("/v1/chat/completions", body)
    assert whole.status_code == 200, whole.text
    streamed: dict[str, Any] = {"content": "", "reasoning": "", "arguments": ""}
    for chunk in sse(server.post("/v1/chat/completions", {**body, "stream": True})):
        delta = chunk["choices"][0]["delta"]
        streamed["content"] += delta.get("content") or ""
        streamed["reasoning"] += delta.get("reasoning") or ""
        for call in delta.get("tool_calls", ()):
            streamed["arguments"] += call["function"]["arguments"]
    message = whole.json()["choices"][0]["message"]
    calls = message.get("tool_calls", ())
    told = {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning", ""),
        "arguments": "".join(call["function"]["arguments"] for call in calls),
    }
    return [told, streamed]


@pytest.mark.parametrize("fields", [{}, {"tools": [WEATHER]}])
def test_an_answer_has_no_marks_whether_there_are_tools_or_not(
    harmony: Server, fields: dict[str, Any]
) -> None:
    final = "<|channel|>final<|message|>It rains.<|end|>"
    expected = {"content": "It rains.", "reasoning": "I look.", "arguments": ""}
    assert messages(harmony, THOUGHT + final, **fields) == [expected, expected]


def test_a_call_is_found_behind_thoughts_and_a_preamble(harmony: Server) -> None:
    before = "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant"
    expected = {"content": "Let me see.", "reasoning": "I look.", "arguments": '{"city": "Ulm"}'}
    found = messages(harmony, THOUGHT + before + CALL, tools=[WEATHER])
    assert found == [expected, expected]


def test_a_server_says_which_families_it_reads(harmony: Server) -> None:
    assert "reasoning parser: openai_gptoss" in harmony.log
    assert "openai" in harmony.log
