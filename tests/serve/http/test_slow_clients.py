"""Clients that take their time: they are ended by time limits, and nobody else waits for them."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.serve.http.servers import (
    POST,
    Server,
    all_of,
    post,
    running,
    statuses,
    stub_server,
    until,
)

ASKED = {"model": "library", "prompt": "SAY hello END"}
ENDLESS = {"model": "library", "prompt": "FILL", "max_tokens": 240, "stream": True, "n": 32}
"""Two megabytes: more than the kernel keeps for a client that does not read."""
LIMITS = {
    "ARRIVAL_SECONDS": 3.0,
    "LINGER_SECONDS": 1.0,
    "READ_SECONDS": 2.0,
}
BODY_BYTES = 100_000


@pytest.fixture(scope="module")
def hurried(model: Path) -> Iterator[Server]:
    """Its clients have seconds where others have a minute."""
    with stub_server(model, limits=LIMITS, max_body_bytes=BODY_BYTES) as server:
        yield server


@contextmanager
def connections(server: Server, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(server.connect()) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("number", [100, 400])
def test_hundreds_of_slow_connections_keep_nobody_waiting(hurried: Server, number: int) -> None:
    before, memory = hurried.num_files, hurried.resident_bytes
    with connections(hurried, number) as slow:
        for place, one in enumerate(slow):
            match place % 4:
                case 0:
                    one.sendall(POST)  # a head without an end
                case 1:
                    one.sendall(POST + b"Content-Length: 90000\r\n\r\n" + b"x" * 50_000)
                case 2:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                    one.sendall(post({**ENDLESS, "n": 1}))  # and never reads
                case _:
                    pass  # says nothing at all
        for _ in range(3):
            assert hurried.post("/v1/completions", ASKED).status_code == 200
        assert hurried.resident_bytes - memory < 100 * 2**20
        until(lambda: hurried.num_files <= before + 2, "the end of every slow connection")
        assert statuses(all_of(slow[0])) == [408]
        assert statuses(all_of(slow[1])) == [408]
        assert statuses(all_of(slow[3])) == []
    until(lambda: hurried.get("/health").json()["running"] == 0, "an idle engine")
    assert "Traceback" not in hurried.log


@pytest.mark.slow
def test_hundreds_of_idle_connections_cost_little_and_are_closed(hurried: Server) -> None:
    before, memory = hurried.num_files, hurried.resident_bytes
    with connections(hurried, 900) as idle:
        for one in idle:
            one.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        assert all(one.recv(12) == b"HTTP/1.1 200" for one in idle)
        for one in idle[::9]:
            one.shutdown(socket.SHUT_WR)
        assert hurried.post("/v1/completions", ASKED).status_code == 200
        assert hurried.resident_bytes - memory < 40 * 2**20
        until(lambda: hurried.num_files <= before + 2, "the end of every idle connection")
    assert hurried.post("/v1/completions", ASKED).status_code == 200
    assert "Traceback" not in hurried.log


def test_a_client_that_does_not_read_is_cut_off(hurried: Server) -> None:
    def cut_off() -> int:
        return len([one for one in hurried.events if one["event"] == "connection ended"])

    before, files = cut_off(), hurried.num_files
    with hurried.connect() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.sendall(post(ENDLESS))
        until(lambda: cut_off() > before, "the end of a stream that nobody reads")
        until(lambda: hurried.num_files <= files, "a free descriptor")
    until(lambda: hurried.get("/health").json()["running"] == 0, "an idle engine")


@pytest.mark.slow
def test_a_client_that_reads_slowly_gets_everything(hurried: Server) -> None:
    """Slower than the time limit as a whole, faster than the least."""
    with hurried.connect() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
        one.sendall(post(ENDLESS))
        parts, began = [], time.monotonic()
        while part := one.recv(1 << 17):
            parts.append(part)
            if time.monotonic() - began < 3:
                time.sleep(0.3)
            if part.endswith(b"0\r\n\r\n"):
                break
    assert time.monotonic() - began > LIMITS["READ_SECONDS"]
    assert b"".join(parts).count(b'"finish_reason":"stop"') == ENDLESS["n"]


@pytest.mark.slow
def test_what_follows_an_answer_that_came_early_is_not_read_for_ever(hurried: Server) -> None:
    with hurried.connect() as one:
        one.sendall(POST + b"Content-Length: 10000000\r\n\r\n")
        began = time.monotonic()
        until(lambda: _refuses(one), "the end of the connection")
        assert time.monotonic() - began < 30


def _refuses(connection: socket.socket) -> bool:
    try:
        connection.sendall(b"x" * 100)
    except ConnectionError:
        return True
    return False


@pytest.mark.slow
def test_bodies_that_arrive_at_once_have_one_bound(hurried: Server) -> None:
    part = b"x" * (BODY_BYTES - 100)
    with connections(hurried, 40) as slow:
        for one in slow:
            one.sendall(POST + b"Content-Length: %d\r\n\r\n" % (BODY_BYTES - 10) + part)
        answers = [statuses(one.recv(1 << 16)) for one in slow]
    assert answers.count([503]) >= 8
    assert {tuple(one) for one in answers} == {(503,), (408,)}
    assert hurried.post("/v1/completions", ASKED).status_code == 200


@pytest.mark.slow
def test_slow_clients_do_not_hold_up_the_end(model: Path) -> None:
    limits = {"READ_SECONDS": 300.0, "ARRIVAL_SECONDS": 300.0}
    with stub_server(model, limits=limits, shutdown_timeout_seconds=2.0) as server:
        with connections(server, 12) as slow, ThreadPoolExecutor(1) as pool:
            for one in slow[:4]:
                one.sendall(POST)
            for one in slow[4:8]:
                one.sendall(POST + b"Content-Length: 90000\r\n\r\n{")
            for one in slow[8:]:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                one.sendall(post(ENDLESS))
            quick = {"model": "library", "prompt": "SLOW FILL", "max_tokens": 40, "stream": True}
            stream = pool.submit(server.post, "/v1/completions", quick)
            until(lambda: server.get("/health").json()["running"], "running requests")
            server.process.terminate()
            assert stream.result().text.endswith("data: [DONE]\n\n")
            assert statuses(all_of(slow[4])) == [503]
            assert server.process.wait(60) == 0
        assert "Traceback" not in server.log
        assert "Cancel" not in server.log


@pytest.mark.slow
def test_more_connections_than_files_are_refused_in_one_line(model: Path) -> None:
    with stub_server(model, open_files=80) as server:
        with connections(server, 120) as many:
            for one in many:
                one.sendall(b"GET")
            until(lambda: "connections refused" in server.log, "a log line")
            answered = statuses(b"".join(all_of(one) for one in many[-20:]))
            assert answered == [503] * 20
        assert len([line for line in server.events if line["event"] == "connections refused"]) == 1
        until(lambda: server.num_files < 30, "free descriptors")
        assert server.get("/health").status_code == 200
        assert server.post("/v1/completions", ASKED).status_code == 200


@pytest.mark.slow
def test_a_limit_on_files_that_leaves_no_connection_is_one_line(model: Path) -> None:
    words = [str(model), json.dumps({"model_name": "x", "port": 0}), "{}", "1", "null"]
    with running("tests.serve.http.run_stub_server", *words, open_files=24) as server:
        assert server.process.wait(60) == 2
        (line,) = server.log.strip().splitlines()
        assert "ulimit -n" in line
