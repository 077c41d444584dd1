"""Processes that are killed, stopped and told twice to end, under a steady load; and what stays."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.serve.http.servers import (
    Server,
    gone,
    post,
    resident_bytes,
    sse,
    stub_server,
    until,
)

from ridgeline.serve.process.supervisor import END_SECONDS

SOAK_ROUNDS, SOAK_REQUESTS = 6, 80
MOST_GROWTH_BYTES = 2**20
"""A round, once everything that is allocated once has been."""


@pytest.fixture(scope="module")
def pair(model: Path) -> Iterator[Server]:
    with stub_server(model, replicas=2) as server:
        yield server


@pytest.fixture(scope="module")
def single(model: Path) -> Iterator[Server]:
    with stub_server(model, request_timeout_seconds=3.0) as server:
        yield server


def outcome(server: Server, number: int, pace: str = "SLOW") -> str:
    """Of one request with a text of its own: whole, wrong, cut, lost, or a status."""
    said = f"answer {number} of {number}"
    asked = {
        "model": "library",
        "prompt": f"{pace} SAY {said} END",
        "max_tokens": 60,
        "stream": number % 2 == 0,
    }
    try:
        response = server.post("/v1/completions", asked)
    except httpx.TransportError:
        return "lost"
    if response.status_code != 200:
        return str(response.status_code)
    documents = sse(response) if asked["stream"] else [response.json()]
    if "error" in documents[-1]:
        return "cut"
    text = "".join(choice["text"] for one in documents for choice in one["choices"])
    return "whole" if text == said else f"wrong: {text}"


@contextmanager
def load(server: Server) -> Iterator[Counter[str]]:
    """Six requests at a time, streamed and not, until the end of the block; what became of them."""
    found: Counter[str] = Counter()
    numbers, enough = iter(range(10**6)), threading.Event()

    def ask() -> None:
        while not enough.is_set():
            found[outcome(server, next(numbers))] += 1

    with ThreadPoolExecutor(6) as pool:
        asking = [pool.submit(ask) for _ in range(6)]
        try:
            until(lambda: found["whole"] > 6, "a load")
            yield found
        finally:
            enough.set()
    for one in asking:
        one.result()


def returned(server: Server) -> set[int]:
    """The engines that were said to be back, by their process."""
    return {one["pid"] for one in server.events if one["event"] == "engine started again"}


def test_a_replica_killed_twice_in_a_second_takes_only_what_it_answered(pair: Server) -> None:
    endless = {"model": "library", "prompt": "REST", "stream": True}
    with load(pair) as found, pair.connect() as held, held.makefile("rb") as answer:
        held.sendall(post(endless, head=b"Connection: close\r\n"))
        assert any(line.startswith(b"data:") for line in answer)
        for victim in pair.engine_pids():  # the endless one is at either of them
            before, there = returned(pair), set(pair.engine_pids())
            os.kill(victim, signal.SIGKILL)
            (again,) = until(lambda: set(pair.engine_pids()) - there, "a new engine")  # noqa: B023
            os.kill(again, signal.SIGKILL)
            # One that is quick was said to be back already, and has to come back once more.
            until(lambda: returned(pair) - {*before, again}, "its return")  # noqa: B023
            since = found["whole"]
            until(lambda: found["whole"] > since + 6, "answers")  # noqa: B023
        assert b'"error"' in answer.read()
    assert set(found) <= {"whole", "cut", "503"}
    assert found["cut"] + found["503"] <= 4 * 6  # at most what was open at each kill
    assert len(pair.engine_pids()) == 2
    assert {outcome(pair, number) for number in range(8)} == {"whole"}


@pytest.mark.slow
def test_every_engine_killed_at_once_is_back_with_nothing_left_open(pair: Server) -> None:
    before = returned(pair)
    with load(pair) as found:
        for pid in pair.engine_pids():
            os.kill(pid, signal.SIGKILL)
        until(lambda: len(returned(pair) - before) == 2, "their return")
        since = found["whole"]
        until(lambda: found["whole"] > since + 6, "answers")
    assert set(found) <= {"whole", "cut", "503"}
    until(lambda: pair.get("/health").json()["running"] == 0, "idle engines")
    assert "Traceback" not in pair.log


@pytest.mark.slow
def test_engines_end_with_a_server_that_is_killed_and_its_port_is_free(model: Path) -> None:
    with stub_server(model, replicas=2) as server:
        engines = server.engine_pids()
        assert len(engines) == 2
        os.kill(engines[0], signal.SIGSTOP)  # even one that hears nothing
        with load(server) as found:
            server.process.kill()
            server.process.wait(60)
            until(lambda: found["lost"], "lost connections")
        assert set(found) <= {"whole", "lost"}
        until(lambda: all(map(gone, engines)), "the engines' end")
        host, port = server.address.removeprefix("http://").split(":")
        with socket.create_server((host, int(port))):
            pass


@pytest.mark.slow
def test_a_stopped_engine_costs_its_requests_and_goes_on(single: Server) -> None:
    pid = single.engine_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        for stream in (False, True):
            asked = {"model": "library", "prompt": "SAY late END", "stream": stream}
            response = single.post("/v1/completions", asked)
            assert response.status_code == 504
            assert "--request-timeout" in response.json()["error"]["message"]
        assert single.get("/health").json()["heartbeat_age_seconds"] > 3
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: single.get("/health").json()["running"] == 0, "an idle engine")
    assert outcome(single, 1) == "whole"
    assert single.engine_pid() == pid


@pytest.mark.slow
def test_the_end_is_clean_for_commands_and_a_second_signal_kills_the_engines(model: Path) -> None:
    with (
        stub_server(model, shutdown_timeout_seconds=0.5) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        engine = server.engine_pid()
        asked = {"model": "library", "prompt": "HANG"}
        hangs = pool.submit(server.post, "/v1/completions", asked)
        until(lambda: server.get("/health").json()["step_age_seconds"] > 0.5, "a step that hangs")
        waits = pool.submit(server.post, "/v1/embeddings", {"model": "library", "input": "x"})
        until(lambda: server.get("/health").json(), "an answer")
        server.process.terminate()
        for one in (hangs, waits):
            assert one.result().status_code == 503
            assert "shutting down" in one.result().json()["error"]["message"]
        server.process.send_signal(signal.SIGINT)
        told = time.monotonic()
        assert server.process.wait(60) == 0
        assert time.monotonic() - told < END_SECONDS  # an engine gets for its last step
        assert gone(engine)
        assert "Traceback" not in server.log


@pytest.mark.slow
def test_rounds_of_everything_leave_no_memory_and_no_descriptor(single: Server) -> None:
    chance = random.Random(7)

    def one(number: int) -> None:
        match number % 5:
            case 0 | 1:
                assert outcome(single, number, pace="") == "whole"
            case 2:
                single.post("/v1/completions", {"prompt": "x" * number})
            case 3:
                single.get(f"/no/such/{number}")
            case _:
                asked = {"model": "library", "prompt": "FILL", "n": 3, "stream": True}
                with single.connect() as connection:
                    connection.sendall(post({**asked, "max_tokens": 200}))
                    connection.recv(chance.randrange(1, 3000))

    engine, sizes, files = single.engine_pid(), [], []
    with ThreadPoolExecutor(8) as pool:
        for _ in range(SOAK_ROUNDS):
            list(pool.map(one, range(SOAK_REQUESTS)))
            until(lambda: single.get("/health").json()["running"] == 0, "an idle engine")
            sizes.append((single.resident_bytes, resident_bytes(engine)))
            files.append(single.num_files)
    until(lambda: single.num_files <= min(files), "free descriptors")
    half = SOAK_ROUNDS // 2
    for before, after in zip(sizes[half - 1], sizes[-1], strict=True):
        assert (after - before) / half < MOST_GROWTH_BYTES, sizes
