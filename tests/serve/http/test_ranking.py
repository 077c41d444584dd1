"""Documents in order, in the words of the servers whose clients ask, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from tests.serve.http.servers import Server

TEXTS = ["one two three four five six", "a", "a b c"]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_come_in_order_and_so_many_as_asked_for(stub: Server, path: str) -> None:
    documents = ["one two three four five six", {"text": "a"}, "a b c"]
    body = {"model": "library", "query": "b", "documents": documents}
    reply = stub.post(path, body).json()
    assert [one["index"] for one in reply["results"]] == [1, 2, 0]
    assert reply["results"][0]["document"] == {"text": "a"}
    scores = [one["relevance_score"] for one in reply["results"]]
    assert scores == sorted(scores, reverse=True)
    (best,) = stub.post(path, {**body, "top_n": 1, "return_documents": False}).json()["results"]
    assert best["index"] == 1
    assert "document" not in best
    cut = stub.post(path, {**body, "max_tokens_per_doc": 1}).json()["results"]
    assert {one["relevance_score"] for one in cut} == {cut[0]["relevance_score"]}
    assert [one["index"] for one in reply["data"]] == [1, 2, 0]
    assert reply["usage"]["completion_tokens"] == 0
    assert "object" not in reply  # Infinity's client knows one name, others read none
    assert reply["meta"]["api_version"] == {"version": "2"}


def test_nvidias_clients_read_rankings_of_passages(stub: Server) -> None:
    passages = [{"text": text} for text in TEXTS]
    body: Any = {"model": "library", "query": {"text": "b"}, "passages": passages}
    ranked = stub.post("/v1/ranking", body).json()["rankings"]
    assert [one["index"] for one in ranked] == [1, 2, 0]
    known = stub.post("/rerank", {"query": "b", "documents": TEXTS}).json()["results"]
    assert [one["logit"] for one in ranked] == [one["relevance_score"] for one in known]
    long = {**body, "passages": [{"text": "one two " * 4000}]}
    assert stub.post("/v1/ranking", long).status_code == 400
    assert stub.post("/v1/ranking", {**long, "truncate": "END"}).status_code == 200


def test_clients_of_an_embedding_server_read_a_bare_list(stub: Server) -> None:
    body = {"query": "b", "texts": TEXTS, "raw_scores": False, "truncate": True}
    found = stub.post("/rerank", {**body, "return_text": True})
    assert [(one["index"], one["text"]) for one in found.json()] == [
        (1, "a"),
        (2, "a b c"),
        (0, TEXTS[0]),
    ]
    assert found.headers["X-Without-Effect"] == "raw_scores"
    assert "text" not in stub.post("/rerank", body).json()[0]
    assert [one["index"] for one in stub.post("/rerank", {**body, "top_n": 2}).json()] == [1, 2]


def test_voyages_top_k_is_top_n(stub: Server) -> None:
    body = {"query": "b", "documents": TEXTS, "truncation": True}
    assert [one["index"] for one in stub.post("/rerank", {**body, "top_k": 1}).json()["data"]] == [
        1
    ]
    assert stub.post("/rerank", {**body, "top_k": 1, "top_n": 2}).status_code == 400
    assert stub.post("/rerank", {"query": "b"}).status_code == 400


def test_documents_of_fields_are_read_by_the_fields_that_are_named(stub: Server) -> None:
    documents = [{"title": "a", "body": "one two three four five six"}, {"title": "a b c"}]
    body: Any = {"query": "b", "documents": documents}
    assert stub.post("/rerank", body).json()["results"][0]["document"] == documents[1]
    named = stub.post("/rerank", {**body, "rank_fields": ["title"]}).json()["results"]
    assert [one["index"] for one in named] == [0, 1]
    assert stub.post("/rerank", {**body, "rank_fields": ["other"]}).status_code == 400
