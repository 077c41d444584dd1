"""What recorded requests of public clients had that was refused here at first, one thing each.

Found by sending the request bodies of the recordings ("cassettes") in the tests of public clients
to a server: pydantic-ai, crewAI, ruby_llm, fantasy, chatlas, ellmer, OpenLLMetry, OpenInference,
ruby-openai, dd-trace-py, newrelic, the inline snapshots of Vercel's ai, and later rig, Llama Stack,
langchaingo, dd-trace-js and openllmetry-js. Images and budgets of
thoughts need another model than the stub's (`vision/test_images_in_chats.py`,
`test_thought_budget.py`).
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.serve.http.servers import Server, sse

ASKED = {"role": "user", "content": "x"}
BLOB = {"inlineData": {"mimeType": "image/png", "data": ""}}
CHAT = "/v1/chat/completions"
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}
FLAT = {"type": "function", **FUNCTION}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
FOUND = {"type": "tool_search_output", "call_id": "s", "execution": "client", "tools": [FLAT]}
LATER = {"type": "additional_tools", "role": "developer", "tools": [FLAT]}
USED = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
REFERENCE = {"type": "tool_reference", "tool_name": "f"}
INPUT_TOOL = {"name": "f", "input_schema": {"type": "object"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
GOOGLE = "/v1beta/models/library:generateContent"
COUNT = "/v1beta/models/library:countTokens"


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [ASKED], "max_tokens": 2, **fields}


def responses(*items: Any, **fields: Any) -> dict[str, Any]:
    return {"input": [ASKED, *items], "max_output_tokens": 2, **fields}


def messages(*turns: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "library", "messages": [ASKED, *turns], "max_tokens": 2, **fields}


def google(**fields: Any) -> dict[str, Any]:
    return {"contents": [{"parts": [{"text": "x"}]}], **fields}


TREE = {
    "type": "object",
    "properties": {"nodes": {"type": "array", "items": {"$ref": "#/definitions/Node"}}},
}
"""It refers to what it does not have, as the nested types of DSPy.rb do."""
GIVEN_BACK = {
    "role": "assistant",
    "tool_calls": [
        {"id": "c", "index": -1, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ],
}
TAKEN: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, chat(keep_alive="5m", audio={"voice": "alloy", "format": "wav"}), "audio, keep_alive"),
    (CHAT, {"messages": [ASKED, GIVEN_BACK, ASKED], "max_tokens": 2}, ""),
    (
        "/v1/messages",
        messages(
            tools=[{"name": "f", "input_schema": TREE}], tool_choice={"type": "tool", "name": "f"}
        ),
        "tools.$ref",
    ),
    (CHAT, chat(usage={"include": True}), ""),
    (CHAT, chat(provider={"only": ["a"]}, models=["b"], transforms=["middle-out"]), "provider"),
    (CHAT, chat(thinking={"type": "enabled", "clear_thinking": False}), ""),
    (CHAT, chat(clear_thinking=True, reasoning_effort="default"), ""),
    (CHAT, chat(reasoning_effort="max"), ""),
    (CHAT, chat(tools=[TOOL], tool_choice={"function": {"name": "f"}}), ""),
    (
        CHAT,
        chat(tools=[{"type": "function", "function": {**FUNCTION, "requires_confirmation": True}}]),
        "tools.requires_confirmation",
    ),
    (
        CHAT,
        {
            "messages": [
                ASKED,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": [{"type": "text", "text": "so"}]},
                        {"type": "text", "text": "a"},
                    ],
                },
                ASKED,
            ],
            "max_tokens": 2,
        },
        "",
    ),
    (
        "/v1/responses",
        responses({"type": "reasoning", "summary": [], "encrypted_content": "gA"}, ASKED),
        "input.encrypted_content",
    ),
    (
        "/v1/responses",
        responses({"role": "assistant", "content": "a", "phase": "final_answer"}, ASKED),
        "input.phase",
    ),
    ("/v1/responses", responses(reasoning={"context": "all_turns"}), "reasoning.context"),
    ("/v1/responses", responses(LATER, tool_choice={"type": "function", "name": "f"}), ""),
    (
        "/v1/responses",
        responses({"type": "tool_search_call", "call_id": "s"}, FOUND, CALL),
        "input.tool_search_call",
    ),
    ("/v1/responses", responses(tools=[{"type": "tool_search"}, FLAT]), "tools.tool_search"),
    ("/v1/messages", messages(output_format={"type": "json_schema", "schema": SCHEMA}), ""),
    (
        "/v1/messages",
        messages(
            {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "E"}, USED]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t", "content": [REFERENCE]}],
            },
            tools=[INPUT_TOOL],
        ),
        "messages.redacted_thinking",
    ),
    ("/v1/messages", messages(speed="fast", inference_geo="eu"), "speed"),
    (GOOGLE, google(systemInstruction={"parts": {"text": "y"}}), ""),
    (
        GOOGLE,
        google(
            tools={"functionDeclarations": [{"name": "f"}]},
            toolConfig={
                "functionCallingConfig": {"mode": "none"},
                "includeServerSideToolInvocations": True,
            },
        ),
        "toolConfig.includeServerSideToolInvocations",
    ),
    (
        GOOGLE,
        {"contents": [{"parts": [{"inlineData": {"mimeType": "text/csv", "data": "YQ=="}}]}]},
        "",
    ),
    (COUNT, google(systemInstruction="y", tools=[], generationConfig={"temperature": 0}), ""),
    (
        CHAT,
        chat(stream=True, stream_options={"include_obfuscation": True}),
        "stream_options.include_obfuscation",
    ),
    (CHAT, chat(tools=[TOOL], function_call="auto"), ""),
    (CHAT, chat(project_id="5a93"), "project_id"),
    (CHAT, chat(grammar='root ::= "yes"'), ""),
    (CHAT, chat(search_context_size="low", return_related_questions=True), "return_related"),
    (
        CHAT,
        chat(tools=[TOOL], tool_choice="required", response_format={"type": "json_object"}),
        "response_format",
    ),
    ("/v1/responses", responses(reasoning={"mode": "pro"}), "reasoning.mode"),
    (
        "/v1/messages",
        messages(thinking={"type": "disabled"}, output_config={"effort": "high"}),
        "output_config.effort",
    ),
    ("/v1/messages", messages(top_p=-1, top_k=-1), ""),
    (
        "/v1/messages",
        messages(
            {"role": "assistant", "content": [{**USED, "caller": {"type": "direct"}}]},
            tools=[INPUT_TOOL],
        ),
        "messages.caller",
    ),
    (
        "/v1/messages",
        messages(
            {"role": "assistant", "content": [{"type": "text", "text": "a", "citations": [{}]}]},
            ASKED,
        ),
        "messages.citations",
    ),
    ("/api/chat", {"messages": [ASKED], "options": {"think": False, "num_predict": 2}}, ""),
]


@pytest.mark.parametrize(("path", "body", "told"), TAKEN)
def test_bodies_that_clients_were_recorded_to_send_are_taken(
    stub: Server, path: str, body: dict[str, Any], told: str
) -> None:
    response = stub.post(path, body)
    assert response.status_code == 200, response.text
    assert told in response.headers.get("x-without-effect", "")


def test_usage_that_openrouters_clients_ask_for_ends_the_stream(stub: Server) -> None:
    chunks = sse(stub.post(CHAT, chat(usage={"include": True}, stream=True)))
    assert chunks[-1]["usage"]["completion_tokens"] == 2
    chunks = sse(stub.post(CHAT, chat(usage={"include": False}, stream=True)))
    assert not any(chunk.get("usage") for chunk in chunks)


def test_thoughts_in_openrouters_details_are_told_to_the_template(stub: Server) -> None:
    def prompt(details: Any) -> tuple[str, str]:
        turn = {"role": "assistant", "content": "a", "reasoning_details": details}
        body = {"messages": [ASKED, turn, ASKED], "max_tokens": 1, "return_token_ids": True}
        reply = stub.post(CHAT, body)
        assert reply.status_code == 200, reply.text
        tokens = {"tokens": reply.json()["prompt_token_ids"]}
        named = reply.headers.get("x-without-effect", "")
        return stub.post("/detokenize", tokens).json()["prompt"], named

    said = {"type": "reasoning.text", "text": "hm", "signature": "s"}
    hidden = {"type": "reasoning.encrypted", "data": "E"}
    written, named = prompt([said, {"type": "reasoning.summary", "summary": "so"}])
    assert ("<think>hm\nso</think>" in written, named) == (True, "")
    written, named = prompt([said, hidden])
    assert ("<think>hm</think>" in written, named) == (True, "messages.reasoning_details")
    written, named = prompt([hidden])
    assert ("<think>" in written, named) == (False, "messages.reasoning_details")


def test_tools_that_came_within_the_input_can_be_called(stub: Server) -> None:
    asked = responses(LATER, tool_choice={"type": "function", "name": "f"}, max_output_tokens=40)
    output = stub.post("/v1/responses", asked).json()["output"]
    assert [one["name"] for one in output if one["type"] == "function_call"] == ["f"]


def test_googles_files_are_told_as_text_or_refused_by_their_kind(stub: Server) -> None:
    def asked(kind: str, data: str = "YSxi", role: str = "user") -> Any:
        blob = {"inlineData": {"mimeType": kind, "data": data}}
        turns = [{"role": role, "parts": [blob]}, {"parts": [{"text": "y"}]}]
        return stub.post(COUNT, {"contents": turns})

    tokens = [asked("text/csv", data).json()["totalTokens"] for data in ("YSxi", "YSxiLGMsZA==")]
    assert tokens[0] < tokens[1]
    for kind in ("application/pdf", "audio/wav"):
        assert f"contents: {kind} is not served here" in asked(kind).text
    assert "not base64 of a text" in asked("text/csv", "_w==").text
    assert "files that a model made" in asked("image/png", role="model").text


@pytest.mark.parametrize("path", [CHAT, "/api/chat"])
def test_a_role_of_the_templates_own_is_told_to_it_and_no_other(stub: Server, path: str) -> None:
    def said(role: str) -> Any:
        turns = [{"role": role, "content": "thinking"}, ASKED]
        return stub.post(path, {"model": "library", "messages": turns, "stream": False})

    assert "no role 'usr'" in said("usr").text
    # The stub's template names this one, to refuse it.
    assert "chat template refuses this conversation: no" in said("forbidden").text


def test_a_field_whose_name_no_field_here_could_have_is_named(stub: Server) -> None:
    said = stub.post(CHAT, chat(**{"tensorzero::tags": {"a": "b"}})).json()["error"]["message"]
    assert said.startswith("tensorzero::tags is no field of this request")


def test_parts_that_are_not_served_are_named(stub: Server) -> None:
    file = {"type": "input_file", "file_id": "f"}
    for item in (
        {"role": "user", "content": [file]},
        {"type": "function_call_output", "call_id": "c", "output": [file]},
    ):
        told = stub.post("/v1/responses", responses(CALL, item)).json()["error"]["message"]
        assert "'input_file' is not served here" in told


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            CHAT,
            {
                "messages": [
                    ASKED,
                    {
                        "role": "tool",
                        "content": [{"type": "image_url", "image_url": {"url": "data:,"}}],
                    },
                ]
            },
        ),
        (
            "/v1/responses",
            responses(
                CALL,
                {
                    "type": "function_call_output",
                    "call_id": "c",
                    "output": [{"type": "input_image", "image_url": "data:,"}],
                },
            ),
        ),
        (
            "/v1/messages",
            messages(
                {"role": "assistant", "content": [USED]},
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "t",
                            "is_error": True,
                            "content": [
                                {"type": "text", "text": "a"},
                                {"type": "image", "source": {"type": "url", "url": "https://a/b"}},
                            ],
                        }
                    ],
                },
            ),
        ),
        (
            GOOGLE,
            {
                "contents": [
                    {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]},
                    {
                        "role": "user",
                        "parts": [
                            {
                                "functionResponse": {
                                    "name": "f",
                                    "parts": [
                                        {"inlineData": {"mimeType": "image/png", "data": ""}}
                                    ],
                                }
                            }
                        ],
                    },
                ]
            },
        ),
    ],
)
def test_images_that_tools_returned_are_refused_of_a_model_without_eyes(
    stub: Server, path: str, body: dict[str, Any]
) -> None:
    response = stub.post(path, body)
    assert response.status_code == 400
    assert "this model takes text alone" in response.text
