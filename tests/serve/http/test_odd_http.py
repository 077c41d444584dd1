"""HTTP as nobody should send it, and clients that go at every moment: errors, never traces."""

from __future__ import annotations

import json
import random
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tests.serve.http.servers import POST, Server, all_of, post, statuses, until

ASKED = {"model": "library", "prompt": "SAY hello END"}
STREAM = {"model": "library", "prompt": "SLOW FILL", "max_tokens": 10, "stream": True}
CLOSE = b"Connection: close\r\n"
LONG = b"Content-Length: 9000000\r\n\r\n"


def last_json(answer: bytes) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(answer[answer.rindex(b"\r\n\r\n") :])
    return found


@pytest.mark.parametrize(
    ("sent", "status", "said"),
    [
        (b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 200_000, 431, "65536 bytes"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 20_000, 431, "65536 bytes"),
        (POST + b"Content-Length: -5\r\n\r\n{}", 400, "bad Content-Length"),
        (POST + b"Content-Length: 9\r\nContent-Length: 8\r\n\r\n", 400, "conflicting"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "illegal chunk header"),
        (POST + b"Transfer-Encoding: gzip\r\n\r\n", 501, "Transfer-Encoding"),
        (b"GET /health HTTP/1.1\r\n\r\n", 400, "Host"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100, 400, "request line"),
        (b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n", 400, "request line"),
        (POST + b"Expect: 100-continue\r\n" + CLOSE + LONG, 413, "--max-body-bytes"),
        (POST + CLOSE + LONG + b"x" * 100_000, 413, "--max-body-bytes"),
    ],
)
def test_what_is_no_request_gets_an_error_in_the_apis_shape(
    stub: Server, sent: bytes, status: int, said: str
) -> None:
    answer = stub.raw(sent)
    assert statuses(answer) == [status]
    assert said in last_json(answer)["error"]["message"]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (post(ASKED) * 2 + post(ASKED, head=CLOSE), [200, 200, 200]),
        (post(STREAM) + post(ASKED, head=CLOSE), [200, 200]),
        (post({}) + post(ASKED, head=CLOSE), [400, 200]),
        (post(ASKED, head=b"Expect: 100-continue\r\n" + CLOSE), [100, 200]),
        (post(ASKED, head=CLOSE).replace(b"HTTP/1.1", b"HTTP/1.0"), [200]),
        (post(STREAM).replace(b"HTTP/1.1", b"HTTP/1.0"), [200]),
        (b"HEAD /health HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"\r\n", [200]),
        (b"OPTIONS /v1/completions HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"\r\n", [405]),
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"\r\n", [404]),
        (post(ASKED) + b"no HTTP at all\r\n\r\n", [200, 400]),
    ],
    ids=lambda value: str(value)[:60],
)
def test_requests_on_one_connection_are_answered_in_order(
    stub: Server, sent: bytes, expected: list[int]
) -> None:
    assert statuses(stub.raw(sent)) == expected


def test_chunked_bodies_are_put_together(stub: Server) -> None:
    content = json.dumps(ASKED).encode()
    pieces = [content[i : i + 7] for i in range(0, len(content), 7)]
    response = httpx.post(
        stub.address + "/v1/completions",
        content=iter(pieces),
        headers={"Content-Type": "application/json"},
    )
    assert response.json()["choices"][0]["text"] == "hello"


def test_an_upgrade_to_a_websocket_is_not_taken(stub: Server) -> None:
    head = (
        b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n"
    )
    assert statuses(stub.raw(head + b"Sec-WebSocket-Key: eA==\r\n\r\n")) == [200]


def test_clients_that_go_at_every_moment_leave_nothing_behind(stub: Server) -> None:
    """Cut anywhere between the first byte of the request and the last byte of the answer."""
    until(lambda: stub.get("/health").json()["running"] == 0, "an idle engine")
    before = stub.num_files
    chance = random.Random(5)

    def leave(number: int) -> None:
        stream = number % 2 == 0
        asked = post({**STREAM, "stream": stream, "max_tokens": 3, "n": 1 + number % 3})
        cut = chance.randrange(1, 2 * len(asked))
        with stub.connect() as connection:
            if number % 3 == 0:  # with a reset instead of an end
                linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            connection.sendall(asked[:cut])
            if cut >= len(asked):
                connection.settimeout(chance.random() / 10)
                try:
                    connection.recv(chance.randrange(1, 2000))
                except TimeoutError:
                    pass

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(leave, range(150)))
    until(lambda: stub.get("/health").json()["running"] == 0, "an idle engine")
    until(lambda: stub.num_files <= before, "free descriptors")
    assert stub.post("/v1/completions", ASKED).json()["choices"][0]["text"] == "hello"


def test_half_a_connection_hears_its_stream_to_the_end(stub: Server) -> None:
    with stub.connect() as connection:
        connection.sendall(post({**STREAM, "max_tokens": 200}))
        assert connection.recv(12) == b"HTTP/1.1 200"
        connection.shutdown(socket.SHUT_WR)
        assert all_of(connection).endswith(b"[DONE]\n\n\r\n0\r\n\r\n")


def test_none_of_it_was_a_bug_of_the_server(stub: Server) -> None:
    assert "Traceback" not in stub.log
    assert [one for one in stub.events if one.get("status") == 500] == []
