"""Keys, sizes, the queue's bound and the time limit, on a server that has them all."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serve.http.servers import Server, stub_server, until

KEYS = ("first-key", "second-key")
TIMEOUT_SECONDS = 4.0
"""Long enough for a short answer of a crowded machine; the longest slow one sleeps for 4.8 s."""
BODY = {"model": "library", "prompt": "SAY hello END"}


@pytest.fixture(scope="module")
def guarded(model: Path) -> Iterator[Server]:
    with stub_server(
        model,
        config={"max_waiting": 2},
        api_keys=list(KEYS),
        max_body_bytes=2000,
        request_timeout_seconds=TIMEOUT_SECONDS,
    ) as server:
        yield server


def ask(server: Server, key: str = KEYS[0], **fields: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return server.post("/v1/completions", {**BODY, **fields}, headers=headers)


@pytest.mark.parametrize("key", KEYS)
def test_each_key_opens(guarded: Server, key: str) -> None:
    assert ask(guarded, key).status_code == 200


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer nope", "Basic first-key", "first-key",
                                    "Bearer first-ke", "Bearer é"])  # fmt: skip
def test_anything_else_is_a_401(guarded: Server, header: str) -> None:
    headers = {"Authorization": header.encode()}
    response = guarded.post("/v1/completions", BODY, headers=headers)
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert guarded.get("/v1/models").status_code == 401


def test_a_response_that_is_kept_is_there_for_the_key_that_made_it(guarded: Server) -> None:
    mine, theirs = ({"Authorization": f"Bearer {key}"} for key in KEYS)
    made = guarded.post("/v1/responses", {"input": "SAY hello END"}, headers=mine).json()["id"]
    path = f"/v1/responses/{made}"
    later = {"input": "x", "previous_response_id": made}
    assert guarded.get(path, headers=theirs).status_code == 404
    assert guarded.get(f"{path}/input_items", headers=theirs).status_code == 404
    assert guarded.post("/v1/responses", later, headers=theirs).status_code == 400
    delete = {"verify": False, "timeout": 30}
    assert httpx.delete(guarded.address + path, headers=theirs, **delete).status_code == 404
    assert guarded.post("/v1/responses", later, headers=mine).status_code == 200
    assert guarded.get(path, headers={"x-api-key": KEYS[0]}).status_code == 200
    assert httpx.delete(guarded.address + path, headers=mine, **delete).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/v2/health/live"])
def test_probes_need_no_key(guarded: Server, path: str) -> None:
    assert guarded.get(path).status_code == 200


def test_a_body_that_is_too_long_is_a_413(guarded: Server) -> None:
    assert ask(guarded, prompt="x" * 3000).status_code == 413


def test_a_body_of_unknown_length_is_cut_off_too(guarded: Server) -> None:
    response = httpx.post(
        guarded.address + "/v1/completions",
        content=(b"x" * 500 for _ in range(10)),
        headers={"Authorization": f"Bearer {KEYS[0]}"},
    )
    assert response.status_code == 413


@pytest.mark.sweep("True")
@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_is_a_429_that_says_when_to_come_back(guarded: Server, stream: bool) -> None:
    until(lambda: guarded.get("/health").json()["running"] == 0, "the end of what came before")
    with ThreadPoolExecutor(3) as pool:
        asked = [
            pool.submit(ask, guarded, prompt="SLOW FILL", max_tokens=100, stream=stream)
            for _ in range(3)
        ]
        until(lambda: guarded.get("/health").json()["running"] == 3, "as many as there may be")
        refused = ask(guarded, stream=stream)
        assert [one.result().status_code for one in asked] == [200] * 3
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["type"] == "rate_limit_error"


def test_what_takes_too_long_is_a_504_and_leaves_the_engine(guarded: Server) -> None:
    response = ask(guarded, prompt="SLOW FILL", max_tokens=240)
    assert response.status_code == 504
    until(lambda: guarded.get("/health").json()["running"] == 0, "the abort")


@pytest.mark.slow
def test_a_stream_that_takes_too_long_ends_with_an_error(guarded: Server) -> None:
    response = ask(guarded, prompt="SLOW FILL", max_tokens=200, stream=True)
    assert response.status_code == 200
    *_, last, done = response.text.strip().split("\n\n")
    assert "--request-timeout" in last
    assert done == "data: [DONE]"
