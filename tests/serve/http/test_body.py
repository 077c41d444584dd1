"""Bodies that are nested, broken or no text are refused before anything recurses into them."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serve.http.servers import Server

from ridgeline.records import input_file
from ridgeline.records.input_file import too_deep
from ridgeline.serve.http.gate import check_body
from ridgeline.serve.http.protocol.errors import ApiError

CHAT = '"messages":[{"role":"user","content":"x"}]'
PLACES = {
    "template variables": f'{CHAT},"chat_template_kwargs":{{"extra":%s}}',
    "a tool's parameters": f'{CHAT},"tools":[{{"type":"function","function":'
    '{"name":"f","parameters":{"x":%s}}}]',
    "a schema": f'{CHAT},"response_format":{{"type":"json_schema","json_schema":'
    '{"name":"x","schema":{"x":%s}}}',
    "metadata": f'{CHAT},"metadata":%s',
    "messages": '"messages":%s',
    "no field": f'{CHAT},"bogus":%s',
}


def send(server: Server, path: str, content: bytes) -> httpx.Response:
    headers = {"Content-Type": "application/json"}
    return httpx.post(server.address + path, content=content, headers=headers, timeout=30)


def error_of(response: httpx.Response) -> Any:
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert "\n" not in error["message"]
    return error


@pytest.mark.parametrize("levels", [129, 990, 50_000])
@pytest.mark.parametrize("place", PLACES)
def test_a_body_nested_too_deeply_is_refused(stub: Server, place: str, levels: int) -> None:
    nested = '{"a":' * levels + "1" + "}" * levels
    content = '{"model":"library",' + PLACES[place] % nested + "}"
    error = error_of(send(stub, "/v1/chat/completions", content.encode()))
    assert "nested too deeply" in error["message"]


def test_arguments_of_a_call_nested_too_deeply_are_refused(stub: Server) -> None:
    deep = "[" * 50_000 + "]" * 50_000
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": deep}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
    response = stub.post("/v1/chat/completions", {"model": "library", "messages": messages})
    error = error_of(response)
    assert "nested too deeply" in error["message"]
    assert error["param"] == "messages"


@pytest.mark.parametrize(
    ("path", "content", "param"),
    [
        ("/v1/completions", rb'"prompt":"x","guided_choice":["\ud800","b"]', "guided_choice"),
        ("/v1/completions", rb'"prompt":"x","stop":"\udc00"', "stop"),
        ("/v1/completions", rb'"prompt":"x","user":"\ud800\ud800"', "user"),
        ("/v1/completions", rb'"prompt":"x","guided_json":{"\ud800":1}', "guided_json"),
        ("/v1/chat/completions", rb'"messages":[{"role":"user","content":"\ud800"}]', "messages"),
        (
            "/v1/chat/completions",
            rb'"messages":[{"role":"user","content":"x"}],"metadata":{"a":"\ud800"}',
            "metadata",
        ),
        ("/v1/embeddings", rb'"input":["a","\ud800"]', "input"),
        ("/tokenize", rb'"prompt":"\ud800"', "prompt"),
    ],
)
def test_half_a_character_is_no_text_anywhere(
    stub: Server, path: str, content: bytes, param: str
) -> None:
    error = error_of(send(stub, path, b'{"model":"library",' + content + b"}"))
    assert error["param"] == param
    assert "surrogate" in error["message"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "latin-1"])
def test_a_body_in_another_encoding_is_refused(stub: Server, encoding: str) -> None:
    content = json.dumps({"model": "library", "prompt": "é"}, ensure_ascii=False)
    error = error_of(send(stub, "/v1/completions", content.encode(encoding)))
    assert "UTF-8" in error["message"]


def test_whole_characters_and_brackets_in_text_are_taken(stub: Server) -> None:
    content = rb'{"model":"library","prompt":"\ud83d\ude00 \\ud800 ' + b"[{" * 70 + b'"}'
    assert send(stub, "/v1/completions", content).status_code == 200


def test_control_characters_in_an_adapters_name_or_path_are_refused(stub: Server) -> None:
    for fields in ({"lora_name": "a\0"}, {"lora_path": "/tmp/\0x"}, {"lora_name": "a\nb"}):
        given = {"lora_name": "a", "lora_path": "/tmp", **fields}
        assert error_of(stub.post("/v1/load_lora_adapter", given))["param"] == next(iter(fields))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=30,
)


def depth_of(value: Any) -> int:
    inner = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    )
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


@given(value=json_values, ascii_only=st.booleans())
def test_the_depth_is_that_of_the_parsed_document(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    depth = depth_of(value)
    for few in (input_file.FEW_BRACKETS, 0):  # many are counted by numpy
        with patch.object(input_file, "FEW_BRACKETS", few):
            assert not too_deep(text, most=depth)
            assert depth == 0 or too_deep(text, most=depth - 1)


@given(text=st.text(st.characters()) | st.text(st.sampled_from('\\u"d8c0e/\ud83d\ude00\ud800a')))
def test_a_body_is_taken_exactly_where_its_text_is_text(text: str) -> None:
    body = json.dumps({"prompt": text}).encode()
    try:
        json.loads(body)["prompt"].encode()
        whole = True
    except UnicodeEncodeError:
        whole = False
    try:
        check_body(body)
        taken = True
    except ApiError:
        taken = False
    assert taken == whole


@pytest.mark.parametrize(
    ("kind", "content", "told"),
    [
        ("application/x-www-form-urlencoded", b'{"model":"library"}', "came as 'application/x-www"),
        (None, b'{"model":"library"}', "came without Content-Type"),
        ("application/json", b'["library"]', "the body is no JSON object"),
        ("application/json", b"", "the body is no JSON object"),
    ],
)
def test_a_body_that_is_not_read_as_an_object_is_told_why(
    stub: Server, kind: str | None, content: bytes, told: str
) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    path = stub.address + "/v1/chat/completions"
    error = error_of(httpx.post(path, content=content, headers=headers, timeout=30))
    assert told in error["message"]
    assert ("Content-Type: application/json" in error["message"]) == (told != error["message"])
