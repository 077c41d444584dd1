"""Bodies that ask for nothing unusual in an unusual way are answered, as vLLM and OpenAI do."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.serve.http.servers import Server

CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
COMPLETION = {"prompt": "x", "max_tokens": 2}
BOTH: list[dict[str, Any]] = [
    {"timeout": None, "truncation": None, "moderation": None, "return_prompt_text": None},
    {"extra_body": {}, "extra_headers": {}, "stop": [], "bad_words": []},
    {"mm_processor_kwargs": {}, "vllm_xargs": {}, "logit_bias": {}},
    {"max_tokens": 2.0, "n": 1.0, "seed": 7.0, "temperature": 0.0, "top_k": -1.0},
    {"stream": False, "stream_options": None},
]
CHATS: list[dict[str, Any]] = [
    {"functions": [], "function_call": "none"},
    {"tools": [{"function": {"name": "f"}}], "tool_choice": "none"},
    {"top_logprobs": 0},
    {"logprobs": False, "top_logprobs": 0},
    {"response_format": {"type": "text", "json_schema": None}},
    {
        "messages": [
            {"role": "user", "content": "x", "name": None, "tool_calls": None},
            {"role": "assistant", "content": "y", "provider_specific_fields": None, "images": []},
            {"role": "user", "content": "z"},
        ]
    },
]


@pytest.mark.parametrize("fields", BOTH)
def test_completions_take_what_asks_for_nothing(stub: Server, fields: dict[str, Any]) -> None:
    response = stub.post("/v1/completions", {**COMPLETION, **fields})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("fields", [*BOTH, *CHATS])
def test_chats_take_what_asks_for_nothing(stub: Server, fields: dict[str, Any]) -> None:
    response = stub.post("/v1/chat/completions", {**CHAT, **fields})
    assert response.status_code == 200, response.text


def test_options_of_a_stream_may_be_null(stub: Server) -> None:
    options = {"include_usage": None, "continuous_usage_stats": None}
    body = {**COMPLETION, "stream": True, "stream_options": options}
    response = stub.post("/v1/completions", body)
    assert response.status_code == 200
    assert '"usage":{' not in response.text


def test_completions_name_the_hints_of_chats(stub: Server) -> None:
    hints = {"prompt_cache_key": "k", "prompt_cache_retention": "24h", "service_tier": "auto"}
    others = {"safety_identifier": "someone", "metadata": {"a": "b"}}
    response = stub.post("/v1/completions", {**COMPLETION, **hints, **others})
    assert response.status_code == 200, response.text
    assert all(name in str(response.headers) for name in hints)


def test_a_list_of_no_prompts_is_told_so(stub: Server) -> None:
    message = stub.post("/v1/completions", {"prompt": []}).json()["error"]["message"]
    assert "at least 1" in message


def test_a_number_too_long_to_read_is_refused_in_words(stub: Server) -> None:
    body = '{"prompt": "x", "max_tokens": 1' + "0" * 5000 + "}"
    headers = {"Content-Type": "application/json"}
    response = httpx.post(stub.address + "/v1/completions", content=body, headers=headers)
    assert response.status_code == 400
    assert "5001 digits" in response.json()["error"]["message"]


def test_too_many_stop_strings_are_refused_in_these_words(stub: Server) -> None:
    for place, body in (("completions", COMPLETION), ("chat/completions", CHAT)):
        response = stub.post(f"/v1/{place}", {**body, "stop": [f"s{n}" for n in range(257)]})
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["message"] == "stop: more than 256 stop strings"
        assert error["param"] == "stop"
