"""Bodies that client libraries send, which other servers take: each is answered here, too."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serve.http.servers import Server, stub_server

ASKED = {"role": "user", "content": "x"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
EXTRAS = {"provider_specific_fields": {"refusal": None}, "thinking_blocks": [{"thinking": "x"}]}
TURNS: list[tuple[list[dict[str, Any]], str]] = [
    ([{"role": "user", "content": None}], ""),
    ([{"role": "user", "content": []}], ""),
    ([{"role": "user", "content": ["a", {"text": "b"}]}], ""),
    ([{"role": "user", "content": [{"type": "input_text", "text": "a"}], "id": "m"}], "id"),
    (
        [{"role": "system", "content": [{"type": "text", "text": "a", "cache_control": {"a": 1}}]}],
        "cache_control",
    ),
    ([ASKED, {"role": "assistant", "content": None}, ASKED], ""),
    ([ASKED, {"role": "assistant", "content": [], "refusal": "no"}, ASKED], ""),
    ([ASKED, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, ASKED], ""),
    (
        [ASKED, {"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]}, ASKED],
        "",
    ),
    ([ASKED, {"role": "assistant", "content": "a", **EXTRAS}, ASKED], "thinking_blocks"),
    (
        [
            ASKED,
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{**CALL, "extra_content": {"a": 1}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": None},
        ],
        "extra_content",
    ),
]
SET = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
TOOL = {"type": "function", "function": {"name": "mcp:files/read", "parameters": SET}}
FORMATS: list[dict[str, Any]] = [
    {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
    {"type": "json_schema", "schema": {"type": "object"}, "name": "n", "strict": True},
    {"type": "json_object", "schema": {"type": "object"}},
    {"type": "json", "value": {"type": "object"}},
    {"type": "regex", "pattern": "a+"},
    {"type": "regex", "value": "a+"},
    {"type": "grammar", "grammar": 'root ::= "a"'},
]


def chat(stub: Server, **fields: Any) -> httpx.Response:
    return stub.post("/v1/chat/completions", {"messages": [ASKED], "max_tokens": 2, **fields})


@pytest.mark.parametrize(("messages", "told"), TURNS)
def test_messages_of_other_clients_are_taken(
    stub: Server, messages: list[dict[str, Any]], told: str
) -> None:
    response = chat(stub, messages=messages)
    assert response.status_code == 200, response.text
    named = response.headers.get("x-without-effect", "").split(", ")
    assert (f"messages.{told}" in named) == bool(told)


def test_what_a_message_asks_for_and_what_no_header_can_name_are_refused(stub: Server) -> None:
    for name in ("prefix", "a\r\nb", "é"):
        response = chat(stub, messages=[{**ASKED, name: True}])
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "messages"


@pytest.mark.parametrize("wanted", FORMATS, ids=lambda wanted: str(sorted(wanted.items()))[:40])
def test_formats_of_other_servers_are_taken(stub: Server, wanted: dict[str, Any]) -> None:
    response = chat(stub, response_format=wanted)
    assert response.status_code == 200, response.text


def test_what_no_grammar_holds_is_let_go_unless_the_schema_is_strict(stub: Server) -> None:
    for strict in (None, False, True):
        wanted = {"name": "n", "schema": SET, "strict": strict}
        response = chat(stub, response_format={"type": "json_schema", "json_schema": wanted})
        told = response.headers.get("x-without-effect", "")
        assert ("response_format.uniqueItems" in told) == (not strict)
    asked = {"tools": [{**TOOL, "cache_control": {"type": "ephemeral"}}]}
    told = chat(stub, **asked, tool_choice="required").headers["x-without-effect"]
    assert told.split(", ") == ["tools.uniqueItems", "tools.cache_control"]


def test_tools_may_be_chosen_freely_where_there_are_none(stub: Server) -> None:
    assert chat(stub, tools=[], tool_choice="auto").status_code == 200
    assert chat(stub, tool_choice="auto").status_code == 200


def test_the_words_of_mistrals_clients_are_read(stub: Server) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    given = {"role": "assistant", "content": "a", "prefix": False}
    body = {"messages": [ASKED, given, ASKED], "random_seed": 7, "safe_prompt": False}
    plain = {"messages": [ASKED, {"role": "assistant", "content": "a"}, ASKED], "seed": 7}
    asked = {"tools": [tool], "max_tokens": 40, "temperature": 1}
    theirs = stub.post("/v1/chat/completions", {**body, **asked, "tool_choice": "any"})
    ours = stub.post("/v1/chat/completions", {**plain, **asked, "tool_choice": "required"})
    assert theirs.status_code == 200, theirs.text
    assert theirs.json()["usage"] == ours.json()["usage"]
    assert bool(theirs.json()["choices"][0]["message"].get("tool_calls")) == bool(
        ours.json()["choices"][0]["message"].get("tool_calls")
    )
    for wrong, named in (
        ({**body, "seed": 8}, "random_seed"),
        ({**body, "safe_prompt": True}, "safe_prompt"),
        ({"messages": [{**given, "prefix": True}, ASKED]}, "messages"),
    ):
        refused = stub.post("/v1/chat/completions", wrong)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, named)


@pytest.mark.parametrize(
    ("words", "begins", "told"),
    [
        ({"reasoning": {"effort": "low", "exclude": True}}, "think: low", ""),
        ({"thinking": {"type": "disabled"}}, "think: none", ""),
        ({"reasoning": {"enabled": False}}, "think: none", ""),
        ({"thinking": {"type": "enabled"}}, "user", ""),
        ({"reasoning_format": "hidden"}, "user", ""),
    ],
)
def test_other_words_for_how_much_to_think_are_read(
    stub: Server, words: dict[str, Any], begins: str, told: str
) -> None:
    response = chat(stub, **words, return_token_ids=True)
    assert response.status_code == 200, response.text
    prompt = stub.post("/detokenize", {"tokens": response.json()["prompt_token_ids"]}).json()
    assert prompt["prompt"].startswith(begins)
    assert response.headers.get("x-without-effect", "") == told


@pytest.mark.parametrize(
    "words",
    [
        {"reasoning_format": "raw"},
        {"reasoning": {"effort": "low"}, "reasoning_effort": "high"},
    ],
)
def test_thinking_that_cannot_be_asked_for_is_refused(stub: Server, words: dict[str, Any]) -> None:
    response = chat(stub, **words)
    assert (response.status_code, response.json()["error"]["param"]) == (400, next(iter(words)))


@pytest.mark.parametrize(
    "words",
    [
        {"thinking_token_budget": 5},
        {"reasoning": {"max_tokens": 5}},
        {"thinking": {"type": "enabled", "budget_tokens": 5}},
        {"thinking_budget": 5},
    ],
)
def test_thoughts_whose_marks_are_no_tokens_are_not_bounded(
    stub: Server, words: dict[str, Any]
) -> None:
    refused = chat(stub, **words)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "thinking_token_budget"
    taken = chat(stub, **words, response_format={"type": "json_object"})
    assert taken.headers["x-without-effect"] == "thinking_token_budget"


def test_words_of_no_schema_are_let_go_of_a_strict_one_and_named(stub: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null", "min_items": 1}}}
    wanted = {"name": "n", "schema": schema, "strict": True}
    told = chat(stub, response_format={"type": "json_schema", "json_schema": wanted})
    assert told.headers["x-without-effect"] == "response_format.min_items"


def test_an_answer_with_a_prefix_goes_on_where_it_ends(stub: Server) -> None:
    begun = {"role": "assistant", "content": "SAY hi END"}
    chat = {"messages": [ASKED, begun], "max_tokens": 4}
    wanted = stub.post("/v1/chat/completions", {**chat, "continue_final_message": True}).json()
    prefix = {**chat, "messages": [ASKED, {**begun, "prefix": True}]}
    found = stub.post("/v1/chat/completions", prefix).json()
    assert found["usage"]["prompt_tokens"] == wanted["usage"]["prompt_tokens"]
    assert found["choices"] == wanted["choices"]


def test_vllms_clients_may_name_any_compiler_of_grammars(stub: Server) -> None:
    body = {"prompt": "SAY a END", "guided_decoding_backend": "guidance:no-fallback"}
    reply = stub.post("/v1/completions", body)
    assert reply.headers["X-Without-Effect"] == "guided_decoding_backend"
    body["guided_decoding_backend"] = "nobody's"
    assert stub.post("/v1/completions", body).status_code == 400


def test_a_nucleus_of_nothing_leaves_the_likeliest_token(stub: Server) -> None:
    assert chat(stub, top_p=0).status_code == 200


def test_tools_and_blocks_of_messages_may_carry_more(stub: Server) -> None:
    tool = {"name": "f", "input_schema": {"type": "object"}, "eager_input_streaming": True}
    body = {"model": "library", "max_tokens": 2, "messages": [ASKED], "tools": [tool]}
    response = stub.post("/v1/messages", {**body, "tool_choice": {"type": "none"}})
    assert response.status_code == 200, response.text
    assert response.headers["x-without-effect"] == "tools.eager_input_streaming"


def test_items_of_responses_may_carry_more(stub: Server) -> None:
    item = {"role": "user", "content": [{"type": "input_text", "text": "x", "cache": 1}]}
    response = stub.post("/v1/responses", {"input": [item], "max_output_tokens": 2})
    assert response.status_code == 200, response.text
    assert response.headers["x-without-effect"] == "input.cache"


CODINGS = [("gzip", gzip.compress), ("deflate", zlib.compress), ("identity", bytes)]


@pytest.mark.parametrize(("coding", "press"), CODINGS, ids=[one for one, _ in CODINGS])
def test_compressed_bodies_are_read(stub: Server, coding: str, press: Any) -> None:
    asked = press(json.dumps({"prompt": "SAY hello END"}).encode())
    assert posted(stub, asked, coding).json()["choices"][0]["text"] == "hello"


@pytest.mark.parametrize(
    ("content", "coding", "status"),
    [
        (b"{}", "br", 415),
        (b"{}", "gzip", 400),
        (gzip.compress(b"{}")[:-4], "gzip", 400),
        (gzip.compress(b" " * (1 << 24)), "gzip", 413),
    ],
    ids=["unknown", "not compressed", "cut off", "too long"],
)
def test_bodies_that_cannot_be_read_say_why(
    stub: Server, content: bytes, coding: str, status: int
) -> None:
    response = posted(stub, content, coding)
    assert response.status_code == status
    assert response.json()["error"]["message"]


def posted(stub: Server, content: bytes, coding: str) -> httpx.Response:
    headers = {"Content-Type": "application/json", "Content-Encoding": coding}
    return httpx.post(stub.address + "/v1/completions", content=content, headers=headers)


@pytest.mark.parametrize("path", ["/v1/models/", "//v1/models", "/v1//models", "/health/"])
def test_slashes_too_many_change_nothing(stub: Server, path: str) -> None:
    plain = "/" + "/".join(part for part in path.split("/") if part)
    assert stub.get(path).json().keys() == stub.get(plain).json().keys()


@pytest.mark.parametrize(
    "before",
    [
        *("/openai", "/openai/v1", "/openai/deployments/library", "/v1/openai", "/api/v1", "/api"),
        *("/compatible-mode/v1", "/v1beta/openai", "/engines/llama.cpp/v1", "/anybody/v9", ""),
    ],
)
def test_what_clouds_put_before_a_path_changes_nothing(stub: Server, before: str) -> None:
    body = {"model": "library", "messages": [ASKED], "max_tokens": 1}
    response = stub.post(before + "/chat/completions?api-version=2024-10-21", body)
    assert response.status_code == 200, response.text
    assert stub.post(before + "/nothing", body).status_code == 404


def test_every_apis_paths_are_found_behind_a_prefix(stub: Server) -> None:
    said = {"model": "library", "messages": [ASKED], "max_tokens": 2}
    told = stub.post("/anthropic/v1/messages", said).json()
    assert told["type"] == "message"
    assert stub.post("/anthropic/v1/messages", {}).json()["type"] == "error"
    assert stub.post("/serving-endpoints/library/invocations", said).json()["choices"]
    vertex = "/v1beta1/projects/p/locations/l/publishers"
    asked = {"contents": [{"parts": [{"text": "SAY a END"}]}]}
    path = f"{vertex}/google/models/library:generateContent"
    assert stub.post(path, asked).json()["candidates"]
    (card,) = stub.get("/api/v0/models").json()["data"]
    assert card["id"] == stub.get("/api/v0/models/library").json()["id"] == "library"
    # What is a route stays what it is: these two are Ollama's and Mistral's.
    assert stub.post("/api/embeddings", {"model": "library", "prompt": "x"}).json()["embedding"]
    assert stub.post("/v1/fim/completions", {"prompt": "x", "max_tokens": 1}).json()["choices"]


def test_vertexs_clients_of_anthropics_api_name_the_model_in_the_address(stub: Server) -> None:
    models = "/v1/projects/p/locations/l/publishers/anthropic/models"
    said = {"anthropic_version": "vertex-2023-10-16", "messages": [ASKED], "max_tokens": 2}
    assert stub.post(f"{models}/library:rawPredict", said).json()["model"] == "library"
    streamed = stub.post(f"{models}/library:streamRawPredict", {**said, "stream": True})
    assert "event: message_stop" in streamed.text
    counted = stub.post(f"{models}/count-tokens:rawPredict", {**said, "model": "library"})
    assert counted.json()["input_tokens"] > 0
    wrong = stub.post(f"{models}/library:rawPredict", {**said, "nothing": 1}).json()
    assert (wrong["type"], wrong["error"]["type"]) == ("error", "invalid_request_error")


def test_a_probe_by_head_gets_what_get_would_without_the_body(stub: Server) -> None:
    for path in ("/health", "/v1/models", "/v1/models/library"):
        response = httpx.head(stub.address + path)
        assert response.status_code == 200
        assert int(response.headers["content-length"]) > 0
        assert response.content == b""
    assert httpx.head(stub.address + "/v1/completions").status_code == 405


@pytest.fixture(scope="module")
def lenient(model: Path) -> Iterator[Server]:
    settings = {"chat_template": "{{ messages[0].content }}", "api_keys": ["secret"]}
    with stub_server(model, unknown_fields="ignore", **settings) as server:
        yield server


def test_an_operator_lets_unknown_fields_go_and_the_reply_names_them(lenient: Server) -> None:
    body = {"messages": [ASKED], "max_tokens": 2, "num_ctx": 4096, "think": False}
    response = lenient.post("/v1/chat/completions", body, headers={"api-key": "secret"})
    assert response.status_code == 200, response.text
    assert response.headers["x-without-effect"].split(", ") == ["num_ctx", "think"]
    body |= {"moderation": {"a": 1}}  # which is known, and not served
    response = lenient.post("/v1/chat/completions", body, headers={"api-key": "secret"})
    assert response.status_code == 400


def test_a_budget_of_thoughts_is_taken_where_no_model_thinks(lenient: Server, stub: Server) -> None:
    body = {"model": "library", "max_tokens": 2, "messages": [ASKED]}
    body |= {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    response = lenient.post("/v1/messages", body, headers={"api-key": "secret"})
    assert response.status_code == 200, response.text
    response = stub.post("/v1/messages", body)  # whose template knows of thoughts
    assert response.status_code == 400


def test_anthropics_tool_runner_is_told_to_go_on_without_a_thread(
    lenient: Server, stub: Server
) -> None:
    body = {"model": "library", "max_tokens": 2, "messages": [ASKED], "thread": {"type": "create"}}
    for server in (stub, lenient):
        refused = server.post("/v1/messages", body, headers={"api-key": "secret"})
        assert refused.status_code == 400
        details = refused.json()["error"]["details"]
        assert details == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
