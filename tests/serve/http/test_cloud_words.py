"""Fields by the names of other clouds: read where they mean something, let go where they cannot."""

from __future__ import annotations

from typing import Any

import pytest
from tests.serve.http.servers import Server

CHAT = {"messages": [{"role": "user", "content": "SAY a b c d END"}], "max_tokens": 8}
TEXT = {"prompt": "SAY a b c d END", "max_tokens": 8}


def named(response: Any) -> list[str]:
    assert response.status_code == 200, response.text
    return str(response.headers.get("x-without-effect", "")).split(", ")


@pytest.mark.parametrize(
    "words",
    [
        {"do_sample": True},
        {"do_sample": False},
        {"do_sample": False, "temperature": 0},
        {"disable_reasoning": False},
        {"min_completion_tokens": 1},
        {"nvext": {"ignore_eos": True, "top_k": 3, "greed_sampling": True}},
    ],
)
def test_words_that_have_a_name_here_are_read(stub: Server, words: dict[str, Any]) -> None:
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)):
        assert named(stub.post(path, {**body, **words})) == [""]


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ({"do_sample": False, "temperature": 0.7}, "do_sample"),
        ({"min_completion_tokens": 3, "min_tokens": 2}, "min_completion_tokens"),
        ({"nvext": {"backend": 3}}, "nvext"),
        ({"nvext": {"top_k": "many"}}, "top_k"),
    ],
)
def test_words_that_contradict_a_field_or_are_not_known_are_refused(
    stub: Server, words: dict[str, Any], field: str
) -> None:
    found = stub.post("/v1/completions", {**TEXT, **words})
    assert found.status_code == 400
    assert found.json()["error"]["param"] == field


def test_a_text_is_bounded_and_scored_in_the_words_of_chats(stub: Server) -> None:
    plain = {"prompt": TEXT["prompt"], "max_completion_tokens": 2}
    found = stub.post("/v1/completions", {**plain, "logprobs": True, "top_logprobs": 3}).json()
    scores = found["choices"][0]["logprobs"]
    assert found["usage"]["completion_tokens"] == 2
    assert all(len(one) >= 3 for one in scores["top_logprobs"])
    unasked = stub.post("/v1/completions", {**plain, "logprobs": False}).json()
    assert unasked["choices"][0]["logprobs"] is None
    differ = stub.post("/v1/completions", {**plain, "max_tokens": 3})
    assert differ.json()["error"]["param"] == "max_completion_tokens"


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/v1/chat/completions", {**CHAT, "search_settings": {"country": "x"}}, "search_settings"),
        ("/v1/chat/completions", {**CHAT, "web_search_options": {}, "country": "DE"}, "country"),
        ("/v1/chat/completions", {**CHAT, "disable_tool_validation": True},
         "disable_tool_validation"),
        ("/v1/embeddings", {"input": "a", "metadata": {"key": "b"}}, "metadata"),
        ("/v1/responses", {"input": "a", "max_output_tokens": 8, "max_tool_calls": 5},
         "max_tool_calls"),
        ("/v1/messages", {**CHAT, "model": "library", "fallbacks": "default"}, "fallbacks"),
        ("/v1/messages", {**CHAT, "model": "library", "metadata": {"team": "a"}}, "metadata.team"),
    ],
)  # fmt: skip
def test_what_nothing_can_follow_from_is_named(
    stub: Server, path: str, body: dict[str, Any], told: str
) -> None:
    assert told in named(stub.post(path, body))


def test_a_budget_that_claude_would_answer_by_is_refused(stub: Server) -> None:
    asked = {**CHAT, "model": "library", "output_config": {"task_budget": {"total": 9}}}
    said = stub.post("/v1/messages", asked).json()["error"]["message"]
    assert said == "output_config.task_budget is not supported; leave it out"


def test_notes_of_other_servers_in_an_earlier_answer_are_let_go(stub: Server) -> None:
    cited = {"type": "url_citation", "url": "https://a.example", "start_index": 0, "end_index": 1}
    said = {"type": "output_text", "text": "b", "annotations": [cited], "logprobs": []}
    turns = [
        {"role": "user", "content": "a"},
        {"type": "message", "role": "assistant", "content": [said]},
        {"role": "user", "content": "c"},
    ]
    found = stub.post("/v1/responses", {"input": turns, "max_output_tokens": 8})
    assert "input.annotations" in named(found)
    mark = {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}
    answered = {"role": "assistant", "content": [mark, {"type": "text", "text": "b"}]}
    body = {"model": "library", "max_tokens": 8, "messages": [turns[0], answered, turns[2]]}
    assert "messages.fallback" in named(stub.post("/v1/messages", body))
    bare = {**answered, "content": "b"}
    counts = [
        stub.post("/v1/messages/count_tokens", {**body, "messages": [turns[0], one, turns[2]]})
        for one in (answered, bare)
    ]
    assert counts[0].json() == counts[1].json()


def test_documents_are_ranked_in_llama_stacks_words(stub: Server) -> None:
    words = {"query": "a", "items": ["a", "b", "c"], "max_num_results": 2}
    found = stub.post("/v1/rerank", words)
    assert len(found.json()["results"]) == 2


def test_searches_of_other_servers_in_an_earlier_answer_are_let_go(stub: Server) -> None:
    asked, said = {"role": "user", "content": "a"}, {"type": "text", "text": "b"}
    call = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "a"}}
    page = {"type": "web_search_result", "url": "https://a.example", "encrypted_content": "E"}
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [page]}
    body = {"model": "library", "max_tokens": 8}
    turns = [asked, {"role": "assistant", "content": [call, found, said]}, asked]
    given = stub.post("/v1/messages", {**body, "messages": turns})
    assert named(given) == ["messages.server_tool_use", "messages.web_search_tool_result"]
    bare = [asked, {"role": "assistant", "content": [said]}, asked]
    plain = stub.post("/v1/messages", {**body, "messages": bare})
    assert given.json()["usage"]["input_tokens"] == plain.json()["usage"]["input_tokens"]
    readable = {"type": "code_execution_tool_result", "tool_use_id": "s", "content": {}}
    turns[1] = {"role": "assistant", "content": [readable]}
    assert stub.post("/v1/messages", {**body, "messages": turns}).status_code == 400


def test_a_search_that_brought_its_finds_along_is_refused(stub: Server) -> None:
    search = {"type": "file_search_call", "id": "f", "queries": ["a"], "status": "completed"}
    web = {"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "a"}}
    asked = [{"role": "user", "content": "a"}, search, web]
    found = stub.post("/v1/responses", {"input": asked, "max_output_tokens": 8})
    assert named(found) == ["input.file_search_call", "input.web_search_call"]
    asked[1] = {**search, "results": [{"text": "what it found"}]}
    refused = stub.post("/v1/responses", {"input": asked, "max_output_tokens": 8})
    assert refused.json()["error"]["param"] == "input"
