"""Google's API, as its clients send and read it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.serve.http.servers import Server

PATH = "/v1beta/models/library:"
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>'
ORDER = f"SAY <think>Hm.</think>I look. {CALL} END"
WEATHER = {"name": "weather", "parameters": {"type": "OBJECT", "nullable": True}}
TOOLS = [{"functionDeclarations": [WEATHER]}]


def asked(content: str, **fields: Any) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": [{"text": content}]}], **fields}


def test_an_answer_has_texts_and_calls_and_thoughts_where_they_are_asked_for(stub: Server) -> None:
    config = {"thinkingConfig": {"includeThoughts": True}}
    body = asked(ORDER, tools=TOOLS, generationConfig=config)
    found = stub.post(PATH + "generateContent", body).json()
    (candidate,) = found["candidates"]
    thought, text, call = candidate["content"]["parts"]
    assert thought == {"text": "Hm.", "thought": True}
    assert text == {"text": "I look."}
    assert call["functionCall"]["args"] == {"city": "Ulm"}
    assert candidate["finishReason"] == "STOP"
    counts = found["usageMetadata"]
    assert counts["thoughtsTokenCount"] > 0
    parts = ("promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount")
    assert counts["totalTokenCount"] == sum(counts[name] for name in parts)
    plain = stub.post(PATH + "generateContent", asked(ORDER, tools=TOOLS)).json()
    assert not any("thought" in one for one in plain["candidates"][0]["content"]["parts"])


def test_calls_and_their_results_are_given_back(stub: Server) -> None:
    said = {
        "role": "model",
        "parts": [{"functionCall": {"name": "weather", "args": {"city": "Ulm"}}}],
    }
    result = {"functionResponse": {"name": "weather", "response": {"rain": "no"}}}
    body = asked(ORDER, tools=TOOLS)
    body["contents"] += [said, {"role": "user", "parts": [result]}]
    body["systemInstruction"] = {"parts": [{"text": "Be brief."}]}
    reply = stub.post(PATH + "generateContent", body).json()
    call = {"id": "a", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
    plain = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": ORDER},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": '{"rain": "no"}'},
    ]
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    same = stub.post("/tokenize", {"messages": plain, "tools": [tool]}).json()["count"]
    assert reply["usageMetadata"]["promptTokenCount"] == same
    counted = {"generateContentRequest": body}
    assert stub.post(PATH + "countTokens", counted).json() == {"totalTokens": same}


def test_a_stream_has_what_came_since_the_last_event(stub: Server) -> None:
    body = asked(ORDER, tools=TOOLS)
    text = stub.post(PATH + "streamGenerateContent?alt=sse", body).text
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line]
    parts = [part for one in events for part in one["candidates"][0]["content"]["parts"]]
    assert "".join(one.get("text", "") for one in parts) == "I look."
    assert [one["functionCall"]["name"] for one in parts if "functionCall" in one] == ["weather"]
    assert [one["candidates"][0].get("finishReason") for one in events][-1] == "STOP"
    assert events[-1]["usageMetadata"]["totalTokenCount"] > 5
    (whole,) = stub.post(PATH + "streamGenerateContent", body).json()
    assert whole["candidates"][0]["finishReason"] == "STOP"


def test_sampling_is_asked_for_in_either_way_of_writing(stub: Server) -> None:
    for config in (
        {"maxOutputTokens": 1, "topK": 5, "stopSequences": ["two"], "candidateCount": 2},
        {"max_output_tokens": 1, "top_k": 5, "stop_sequences": ["two"], "candidate_count": 2},
    ):
        body = asked("SAY one two END", generationConfig={**config, "responseLogprobs": True})
        found = stub.post("/v1/models/library:generateContent", body).json()["candidates"]
        assert [one["index"] for one in found] == [0, 1]
        assert {one["finishReason"] for one in found} == {"MAX_TOKENS"}
        assert len(found[0]["logprobsResult"]["chosenCandidates"]) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cachedContent", "cachedContents/1"),
        ("generationConfig", {"thinkingConfig": {"thinkingBudget": 5}}),
        ("generationConfig", {"responseSchema": {"type": "STRING"}}),
        ("generationConfig", {"responseModalities": ["AUDIO"]}),
        ("generationConfig", {"topK": -2}),
        ("tools", [{"functionDeclarations": [{"name": "a", "nothing": True, "parameters": 1}]}]),
    ],
)
def test_what_is_not_served_is_refused_in_googles_shape(
    stub: Server, field: str, value: Any
) -> None:
    refused = stub.post(PATH + "generateContent", asked("x", **{field: value}))
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")


def test_what_has_no_effect_is_named(stub: Server) -> None:
    safety = [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
    body = asked("SAY a END", tools=[*TOOLS, {"googleSearch": {}}], safetySettings=safety)
    told = stub.post(PATH + "generateContent", body).headers["x-without-effect"]
    assert told == "safetySettings, tools.googleSearch"


def test_models_and_vectors_are_told(stub: Server) -> None:
    (model,) = stub.get("/v1beta/models").json()["models"]
    assert model["name"] == "models/library"
    assert stub.get("/v1beta/models/library").json() == model
    theirs = {"headers": {"x-goog-api-key": "none"}}
    assert stub.get("/v1/models/library", **theirs).json() == model
    assert stub.get("/v1/models", **theirs).json() == {"models": [model]}
    missing = stub.get("/v1beta/models/other")
    assert missing.status_code == 404
    assert missing.json()["error"]["status"] == "NOT_FOUND"
    texts = ["one", "one two three"]
    same = [
        one["embedding"] for one in stub.post("/v1/embeddings", {"input": texts}).json()["data"]
    ]
    requests = [{"model": "models/library", "content": {"parts": [{"text": t}]}} for t in texts]
    vectors = stub.post(PATH + "batchEmbedContents", {"requests": requests}).json()["embeddings"]
    assert [one["values"] for one in vectors] == same
    one = stub.post(PATH + "embedContent", {**requests[0], "taskType": "RETRIEVAL_QUERY"})
    assert one.json()["embedding"]["values"] == same[0]
    assert one.headers["x-without-effect"] == "taskType"
