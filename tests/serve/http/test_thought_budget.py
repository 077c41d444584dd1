"""A bound of thoughts, through the real server: the closing mark comes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.serve.http.servers import Server, chat_model, serving

OPEN, CLOSE, MOST = 0, 2, 3
ASKED = [{"role": "user", "content": "def main("}]
LIKELY = {"logit_bias": {"100": 100}, "max_tokens": 6, "return_token_ids": True}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The library's model, of whose tokens two mark thoughts; it would think for ever."""
    model = chat_model(tmp_path_factory.mktemp("thinker"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = Path(model / name).read_text()
        text = text.replace("<|begin|>", "<think>").replace("<|padding|>", "</think>")
        Path(model / name).write_text(text)
    words = ("--port", "0", "--kv-bytes", str(1 << 24), "--reasoning-parser", "deepseek_r1")
    with serving(model, *words) as server:
        server.wait_until_ready()
        yield server


@pytest.mark.slow
def test_the_answer_begins_when_the_budget_is_spent(thinker: Server) -> None:
    body: dict[str, Any] = {"messages": ASKED, **LIKELY, "thinking_token_budget": MOST}
    reply = thinker.post("/v1/chat/completions", body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["token_ids"] == [100] * MOST + [CLOSE] + [100] * 2
    message = reply.json()["choices"][0]["message"]
    assert message["reasoning"] == message["content"][:1] * MOST
    unbounded = thinker.post("/v1/chat/completions", {"messages": ASKED, **LIKELY}).json()
    assert unbounded["choices"][0]["token_ids"] == [100] * 6


@pytest.mark.slow
def test_anthropics_and_googles_budgets_are_kept(thinker: Server) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1}
    body: dict[str, Any] = {"model": "library", "messages": ASKED, "max_tokens": 40}
    reply = thinker.post("/v1/messages", {**body, "thinking": thinking})
    assert reply.status_code == 200, reply.text
    assert [block["type"] for block in reply.json()["content"]] == ["thinking", "text"]
    config = {"thinkingConfig": {"thinkingBudget": 1, "includeThoughts": True}}
    config |= {"maxOutputTokens": 40}
    asked = {"contents": [{"parts": [{"text": "def main("}]}], "generationConfig": config}
    reply = thinker.post("/v1beta/models/library:generateContent", asked)
    assert reply.status_code == 200, reply.text
    parts = reply.json()["candidates"][0]["content"]["parts"]
    assert [part.get("thought", False) for part in parts] == [True, False]
