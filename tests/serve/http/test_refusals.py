"""Whatever is not served is refused with a status, a sentence and the field; nothing is ignored."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.serve.http.servers import Server

CHAT = {"messages": [{"role": "user", "content": "x"}]}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TOOL = {"type": "function", "function": {"name": "f"}}
FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"bogus": 1}, "bogus"),
    ({"suffix": "x"}, "suffix"),
    ({"temperature": "0.5"}, "temperature"),
    ({"temperature": 2.5}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": True}, "n"),
    ({"seed": 2**63}, "seed"),
    ({"stop": [""]}, "stop"),
    ({"timeout": 5}, "timeout"),
    ({"max_tokens": 5.5}, "max_tokens"),
    ({"logprobs": 21}, "logprobs"),
    ({"logit_bias": {"5000": 1}}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"best_of": 1, "n": 2}, "best_of"),
    ({"best_of": 3, "stream": True}, "best_of"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 100000}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [5000]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": "x " * 3000}, "prompt"),
    ({"model": "other"}, "model"),
    ({"guided_json": {}, "guided_regex": "x"}, "guided_json"),
    ({"regex": "x", "structured_outputs": {"regex": "y"}}, "regex"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"guided_regex": "("}, "regex"),
    ({"stream_options": {"include_usage": True}}, None),
    ({"length_penalty": 2}, None),
]
CHAT_FIELDS: list[tuple[dict[str, Any], str | None]] = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "poet", "content": "x"}]}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages"),
    ({"functions": [{"name": "f"}], "tools": [TOOL]}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"reasoning_effort": "endless"}, "reasoning_effort"),
    ({"verbosity": "loud"}, "verbosity"),
    ({"top_logprobs": 2}, None),
    ({"tool_choice": "required"}, None),
    ({"max_tokens": 1, "max_completion_tokens": 2}, None),
    ({"tools": [TOOL, TOOL]}, "tools"),
    ({"chat_template": "{{ messages }}"}, "chat_template"),
    ({"guided_whitespace_pattern": " ?"}, "guided_whitespace_pattern"),
    ({"logits_processors": ["x"]}, "logits_processors"),
    ({"vllm_xargs": {"a": 1}}, "vllm_xargs"),
    ({"response_format": {"type": "structural_tag", "triggers": ["x"]}}, "response_format"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tool_choice",
    ),
    (
        {"tools": [TOOL], "tool_choice": "required", "structured_outputs": {"regex": "a"}},
        "tool_choice",
    ),
    ({"grammar": 'root ::= "a"', "structured_outputs": {"regex": "a"}}, "grammar"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
]


def check(response: httpx.Response, param: str | None, statuses: tuple[int, ...] = (400,)) -> None:
    assert response.status_code in statuses, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert error["message"]
    assert "\n" not in error["message"]


@pytest.mark.parametrize(("fields", "param"), FIELDS, ids=str)
def test_a_completion_names_the_field_that_is_wrong(
    stub: Server, fields: dict[str, Any], param: str | None
) -> None:
    response = stub.post("/v1/completions", {"model": "library", "prompt": "x", **fields})
    check(response, param, (400, 404))


@pytest.mark.parametrize(("fields", "param"), CHAT_FIELDS, ids=str)
def test_a_chat_names_the_field_that_is_wrong(
    stub: Server, fields: dict[str, Any], param: str | None
) -> None:
    check(stub.post("/v1/chat/completions", {"model": "library", **CHAT, **fields}), param)


def test_a_stream_that_is_refused_at_once_has_a_status(stub: Server) -> None:
    given = {"model": "library", "prompt": "x", "guided_regex": "(", "stream": True}
    check(stub.post("/v1/completions", given), "regex")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"nonsense", b"[" * 100000, b'"\xff"', b"1" * 5000],
    ids=lambda content: content[:12].decode("latin-1"),
)
def test_a_body_that_is_no_request_is_a_400(stub: Server, content: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    url = stub.address + "/v1/completions"
    check(httpx.post(url, content=content, headers=headers), None)


def test_nan_is_a_400(stub: Server) -> None:
    content = b'{"model": "library", "prompt": "x", "temperature": NaN}'
    headers = {"Content-Type": "application/json"}
    url = stub.address + "/v1/completions"
    check(httpx.post(url, content=content, headers=headers), "temperature")


def test_half_a_character_is_a_400(stub: Server) -> None:
    content = b'{"model": "library", "prompt": "\\ud800"}'
    headers = {"Content-Type": "application/json"}
    check(httpx.post(stub.address + "/v1/completions", content=content, headers=headers), "prompt")


def test_a_schema_with_a_huge_number_reaches_the_engine(stub: Server) -> None:
    given = {"model": "library", "prompt": "x", "guided_json": {"maximum": 10**40}}
    assert stub.post("/v1/completions", given).status_code == 200


def test_unknown_places_and_methods_have_the_same_shape(stub: Server) -> None:
    check(stub.get("/v1/nothing"), None, (404,))
    check(stub.get("/v1/completions"), None, (405,))
