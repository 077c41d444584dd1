"""A client that closes its connection: the engine hears of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket

import pytest
from tests.serve.http.servers import Server, all_of, until


def running(stub: Server) -> int:
    found: int = stub.get("/health").json()["running"]
    return found


def send(stub: Server, path: str, body: object) -> socket.socket:
    host, port = stub.address.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    connection = socket.create_connection((host, int(port)))
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return connection


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_closing_the_socket_aborts_in_the_engine(stub: Server, path: str, stream: bool) -> None:
    until(lambda: running(stub) == 0, "an idle engine")
    body = {
        "model": "library",
        "prompt": "SLOW FILL",
        "messages": [{"role": "user", "content": "SLOW FILL"}],
        "max_tokens": 200,
        "stream": stream,
        "n": 2,
    }
    del body["messages" if path == "/v1/completions" else "prompt"]
    connection = send(stub, path, body)
    until(lambda: running(stub) == 2, "a running request")
    if stream:
        assert b"200 OK" in connection.recv(4096)
    connection.close()
    logged = len([one for one in stub.events if one.get("status") == 499])
    until(lambda: running(stub) == 0, "the abort")
    until(lambda: len([one for one in stub.events if one.get("status") == 499]) >= max(1, logged),
          "a log line")  # fmt: skip


@pytest.mark.parametrize("stream", [True, False])
def test_who_closes_its_own_direction_is_answered(stub: Server, stream: bool) -> None:
    body = {"model": "library", "prompt": "SLOW FILL", "max_tokens": 20, "stream": stream}
    with send(stub, "/v1/completions", body) as connection:
        connection.shutdown(socket.SHUT_WR)
        answer = all_of(connection)
    assert b"HTTP/1.1 200 OK" in answer
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n" if stream else b"}")


def test_the_standard_librarys_client_may_close_its_own_direction(stub: Server) -> None:
    connection = http.client.HTTPConnection(stub.address.removeprefix("http://"), timeout=60)
    body = {"model": "library", "prompt": "SLOW FILL", "max_tokens": 20}
    headers = {"Content-Type": "application/json"}
    with contextlib.closing(connection):
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        connection.sock.shutdown(socket.SHUT_WR)
        assert connection.getresponse().status == 200


def test_who_goes_behind_its_own_direction_is_gone(stub: Server) -> None:
    until(lambda: running(stub) == 0, "an idle engine")
    body = {"model": "library", "prompt": "SLOW FILL", "max_tokens": 200}
    with send(stub, "/v1/completions", body) as connection:
        connection.shutdown(socket.SHUT_WR)
        until(lambda: running(stub) == 1, "a running request")
    until(lambda: running(stub) == 0, "the abort")


def test_a_client_that_goes_while_it_sends_harms_nobody(stub: Server) -> None:
    host, port = stub.address.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    connection.close()
    assert stub.get("/health").status_code == 200
