"""What vectors answer: pooling, scores; and names of the model, over HTTP."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.serve.http.servers import Server, sse, stub_server

CHAT: Any = {"messages": [{"role": "user", "content": "SAY hi END"}]}


def cosine(one: int, other: int) -> float:
    """Of the stub's vectors, which tell a prompt's length."""
    return (one * other + 0.25) / (math.hypot(one, 0.5) * math.hypot(other, 0.5))


def count(stub: Server, text: str) -> int:
    found: int = stub.post("/tokenize", {"prompt": text}).json()["count"]
    return found


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents")])
def test_one_text_is_compared_with_each_of_the_others(
    stub: Server, path: str, names: tuple[str, str]
) -> None:
    texts = ["a", "one two three four five"]
    reply = stub.post(path, {names[0]: "a b", names[1]: texts}).json()
    wanted = [cosine(count(stub, "a b"), count(stub, text)) for text in texts]
    assert [one["score"] for one in reply["data"]] == pytest.approx(wanted)
    assert reply["data"][1]["index"] == 1
    assert reply["usage"]["prompt_tokens"] == sum(count(stub, text) for text in ["a b", *texts])


def test_sides_of_other_numbers_are_refused(stub: Server) -> None:
    pairs = stub.post("/score", {"text_1": ["a", "b"], "text_2": ["a", "b"]}).json()
    assert [one["score"] for one in pairs["data"]] == pytest.approx([1, 1])
    response = stub.post("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]})
    assert response.status_code == 400
    assert "text_1 has 2 texts and text_2 3" in response.json()["error"]["message"]
    assert stub.post("/score", {"text_1": "a"}).status_code == 400


def test_pooling_gives_the_vectors_that_embeddings_give(stub: Server) -> None:
    body = {"model": "library", "input": ["a", "one two three"]}
    vectors = stub.post("/v1/embeddings", body).json()["data"]
    pooled = stub.post("/pooling", {**body, "task": "embed"}).json()["data"]
    assert [one["data"] for one in pooled] == [one["embedding"] for one in vectors]
    refused = stub.post("/pooling", {**body, "task": "token_embed"})
    assert refused.json()["error"]["param"] == "task"


def vectors_of(stub: Server, texts: list[str], **fields: Any) -> list[list[float]]:
    data = stub.post("/v1/embeddings", {"input": texts, **fields}).json()["data"]
    return [one["embedding"] for one in data]


def test_nvidias_clients_get_vectors_whatever_their_texts_are_for(stub: Server) -> None:
    body = {"model": "library", "input": ["a"], "input_type": "passage", "truncate": "NONE"}
    reply = stub.post("/v1/embeddings", body)
    assert reply.json()["data"][0]["embedding"] == vectors_of(stub, ["a"])[0]
    assert reply.headers["X-Without-Effect"] == "input_type"


def test_coheres_clients_get_the_vectors_in_the_forms_they_ask_for(stub: Server) -> None:
    texts = ["a", "one two three"]
    body = {"model": "library", "texts": texts, "input_type": "search_query"}
    reply = stub.post("/v2/embed", {**body, "embedding_types": ["float", "base64"]})
    found = reply.json()
    assert reply.headers["X-Without-Effect"] == "input_type"
    assert found["embeddings"]["float"] == vectors_of(stub, texts)
    assert found["embeddings"]["base64"] == vectors_of(stub, texts, encoding_format="base64")
    assert found["texts"] == texts
    assert found["meta"]["billed_units"] == {"input_tokens": sum(count(stub, t) for t in texts)}
    refused = stub.post("/v2/embed", {**body, "embedding_types": ["int8"]})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"].startswith("embedding_types")


def test_a_text_for_vectors_is_cut_at_the_end_that_was_asked_for_or_refused(stub: Server) -> None:
    long = "one two three four five"
    ask = {"texts": [long], "max_tokens": 2}
    for truncate in ("START", "END", None):
        found = stub.post("/v2/embed", {**ask, "truncate": truncate}).json()
        assert found["embeddings"]["float"][0][0] == 2
    assert (
        stub.post("/v2/embed", {**ask, "truncate": "NONE"}).json()["error"]["param"] == "truncate"
    )
    endless = "one two " * 4000
    assert stub.post("/embed", {"inputs": endless}).status_code == 400
    (vector,) = stub.post("/embed", {"inputs": endless, "truncate": True}).json()
    assert vector[0] < count(stub, endless)


def test_clients_of_an_embedding_server_get_a_bare_list(stub: Server) -> None:
    texts = ["a", "one two three"]
    body = {"inputs": texts, "normalize": True, "truncate": True, "truncation_direction": "Right"}
    assert stub.post("/embed", body).json() == vectors_of(stub, texts)
    assert stub.post("/embed", {"inputs": "a"}).json() == vectors_of(stub, ["a"])
    assert stub.post("/embed", {**body, "normalize": False}).status_code == 400


@pytest.mark.parametrize(
    ("said", "length"),
    [
        ({"truncate": "END"}, None),
        ({"truncation": True, "output_dimension": 2, "output_dtype": "float"}, 2),
        ({"truncate": True, "dimensions": 1, "normalized": True, "late_chunking": False}, 1),
    ],
)
def test_other_words_for_cut_and_short_vectors_are_read(
    stub: Server, said: dict[str, Any], length: int | None
) -> None:
    endless = "one two " * 4000
    (found,) = stub.post("/v1/embeddings", {"input": [{"text": endless}], **said}).json()["data"]
    assert length in (None, len(found["embedding"]))
    assert stub.post("/v1/embeddings", {"input": endless}).status_code == 400


def test_coheres_older_address_gives_bare_vectors(stub: Server) -> None:
    body = {"texts": ["a", "one two"], "input_type": "search_query"}
    found = stub.post("/v1/embed", body).json()
    assert found["response_type"] == "embeddings_floats"
    assert found["embeddings"] == vectors_of(stub, body["texts"])  # type: ignore[arg-type]
    by_type = stub.post("/v1/embed", {**body, "embedding_types": ["float"]}).json()
    assert by_type["embeddings"] == {"float": found["embeddings"]}


def test_a_conversation_becomes_a_vector(stub: Server) -> None:
    (one,) = stub.post("/v1/embeddings", {"messages": CHAT["messages"]}).json()["data"]
    tokens = stub.post("/tokenize", {**CHAT, "add_generation_prompt": False}).json()["count"]
    assert one["embedding"][0] == tokens
    assert stub.post("/v1/embeddings", {**CHAT, "input": "x"}).status_code == 400


def test_moderation_is_refused_with_its_reason(stub: Server) -> None:
    response = stub.post("/v1/moderations", {"input": "x"})
    assert response.status_code == 400
    assert "moderation model" in response.json()["error"]["message"]


def test_classifying_is_refused_with_its_reason(stub: Server) -> None:
    response = stub.post("/classify", {"model": "library", "input": "x"})
    assert response.status_code == 400
    assert "no classifier's head" in response.json()["error"]["message"]


def test_the_prefix_cache_is_reset(stub: Server) -> None:
    assert stub.post("/reset_prefix_cache", None).status_code == 200
    response = stub.post("/reset_prefix_cache?reset_running_requests=true", None)
    assert response.json()["error"]["param"] == "reset_running_requests"


def test_the_tokenizer_is_described(stub: Server) -> None:
    about = stub.get("/tokenizer_info").json()
    assert about["vocab_size"] == 2048
    assert "messages" in about["chat_template"]


@pytest.fixture(scope="module")
def named(model: Path) -> Iterator[Server]:
    settings: Any = {"model_name": "first", "other_names": ["second", "gpt-4o"]}
    with stub_server(model, **settings) as server:
        yield server


@pytest.mark.parametrize("asked", ["first", "second", "gpt-4o", None, ""])
def test_a_model_answers_to_all_its_names_and_says_the_first(
    named: Server, asked: str | None
) -> None:
    body = {"model": asked} if asked is not None else {}
    chat = named.post("/v1/chat/completions", {**CHAT, **body}).json()
    stream = named.post("/v1/completions", {**body, "prompt": "SAY a END", "stream": True})
    response = named.post("/v1/responses", {**body, "input": "SAY a END"}).json()
    vectors = named.post("/v1/embeddings", {**body, "input": "a"}).json()
    told = {chat["model"], response["model"], vectors["model"]}
    assert told | {one["model"] for one in sse(stream)} == {"first"}


def test_all_names_are_listed_and_others_unknown(named: Server) -> None:
    listed = named.get("/v1/models").json()["data"]
    assert [one["id"] for one in listed] == ["first", "second", "gpt-4o"]
    response = named.post("/v1/completions", {"model": "third", "prompt": "x"})
    assert response.status_code == 404
    assert "known: first, second, gpt-4o" in response.json()["error"]["message"]
    given = {"lora_name": "second", "lora_path": "/somewhere"}
    assert named.post("/v1/load_lora_adapter", given).status_code == 400
