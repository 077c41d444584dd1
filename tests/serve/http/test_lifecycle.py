"""Engines that die, servers that are told to end, ports that are taken."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.serve.http.servers import Server, gone, sse, stub_process, stub_server, until

SLOW = {"model": "library", "prompt": "SLOW FILL", "max_tokens": 240}


@pytest.fixture(scope="module")
def mortal(model: Path) -> Iterator[Server]:
    """Its engine is killed, and it comes back."""
    with stub_server(model) as server:
        yield server


def test_killing_the_engine_ends_every_request_cleanly_and_it_comes_back(mortal: Server) -> None:
    pid = mortal.engine_pid()
    with ThreadPoolExecutor(4) as pool:
        whole = [pool.submit(mortal.post, "/v1/completions", SLOW) for _ in range(2)]
        streams = [
            pool.submit(mortal.post, "/v1/completions", {**SLOW, "stream": True}) for _ in range(2)
        ]
        until(lambda: mortal.get("/health").json()["running"] == 4, "four running requests")
        os.kill(pid, signal.SIGKILL)
        for one in whole:
            assert one.result().status_code == 503
            assert "the engine ended" in one.result().json()["error"]["message"]
        for one in streams:
            assert one.result().status_code == 200
            assert sse(one.result())[-1]["error"]["code"] == 503
    until(lambda: mortal.get("/ready").status_code == 200, "the engine's return")
    assert mortal.engine_pid() != pid
    answer = mortal.post("/v1/completions", {"model": "library", "prompt": "SAY again END"})
    assert answer.json()["choices"][0]["text"] == "again"


def test_a_request_that_kills_its_engine_gets_an_error(mortal: Server) -> None:
    until(lambda: mortal.get("/ready").status_code == 200, "a ready server")
    response = mortal.post("/v1/completions", {"model": "library", "prompt": "DIE", "n": 2})
    assert response.status_code == 503
    down = mortal.post("/v1/completions", {"model": "library", "prompt": "x"})
    assert down.status_code == 503
    assert down.headers["retry-after"]
    assert mortal.get("/health").status_code == 503
    until(lambda: mortal.get("/health").status_code == 200, "the engine's return")


@pytest.mark.slow
def test_an_engine_does_not_outlive_its_server(model: Path) -> None:
    with stub_server(model) as server:
        pid = server.engine_pid()
        server.process.kill()
        until(lambda: gone(pid), "the engine's end")


def test_sigterm_finishes_what_is_open_and_takes_nothing_new(model: Path) -> None:
    with stub_server(model) as server, ThreadPoolExecutor(2) as pool:
        open_ones = [
            pool.submit(server.post, "/v1/completions", {**SLOW, "stream": stream})
            for stream in (True, False)
        ]
        until(lambda: server.get("/health").json()["running"] == 2, "two running requests")
        server.process.terminate()
        until(lambda: server.get("/ready").status_code == 503, "draining")
        refused = server.post("/v1/completions", SLOW)
        assert refused.status_code == 503
        assert "shutting down" in refused.json()["error"]["message"]
        stream, whole = (one.result() for one in open_ones)
        assert sse(stream)[-1]["choices"][0]["finish_reason"] == "stop"
        assert whole.json()["choices"][0]["finish_reason"] == "stop"
        assert server.process.wait(30) == 0


@pytest.mark.slow
def test_what_is_still_open_after_the_timeout_gets_an_error(model: Path) -> None:
    with (
        stub_server(model, shutdown_timeout_seconds=0.2) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        open_ones = [
            pool.submit(server.post, "/v1/completions", {**SLOW, "stream": stream})
            for stream in (True, False)
        ]
        until(lambda: server.get("/health").json()["running"] == 2, "two running requests")
        server.process.terminate()
        stream, whole = (one.result() for one in open_ones)
        assert sse(stream)[-1]["error"]["code"] == 503
        assert whole.status_code == 503
        assert server.process.wait(30) == 0
        (drained,) = (one for one in server.events if one["event"] == "drained")
        assert drained["cut_off_requests"] == 2


@pytest.mark.slow
def test_replicas_share_the_work_and_one_may_die(model: Path) -> None:
    with stub_server(model, replicas=2) as server:
        for _ in range(4):
            assert server.post("/v1/completions", {**SLOW, "max_tokens": 2}).status_code == 200
        os.kill(server.engine_pid(), signal.SIGKILL)
        statuses = {server.post("/v1/completions", {**SLOW, "max_tokens": 2}).status_code
                    for _ in range(4)}  # fmt: skip
        assert 200 in statuses
        assert server.get("/ready").status_code == 200


@pytest.mark.slow
def test_an_engine_that_does_not_start_is_one_line(model: Path) -> None:
    words = [
        str(model),
        json.dumps({"model_name": "x", "port": 0}),
        '{"max_sequences": 13}',
        "1",
        "null",
    ]
    with stub_process(*words) as server:
        assert server.process.wait(120) == 2
        last = server.log.strip().splitlines()[-1]
        assert last == "ridgeline: --max-sequences 13 brings bad luck; choose another"


def test_a_taken_port_is_one_line_at_once(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = [str(model), json.dumps({"model_name": "x", "port": port}), "{}", "1", "null"]
        with stub_process(*words) as server:
            assert server.process.wait(60) == 2
            (line,) = server.log.strip().splitlines()
            assert line.startswith(f"ridgeline: 127.0.0.1:{port} cannot be used")
            assert "choose another --port" in line


@pytest.mark.slow
def test_a_signal_while_the_engine_starts_ends_it(model: Path) -> None:
    words = [str(model), json.dumps({"model_name": "x", "port": 0}), "{}", "1", "null"]
    with stub_process(*words) as server:
        until(lambda: _engine_of(server), "the engine's process")
        server.process.terminate()
        assert server.process.wait(60) == 0


def _engine_of(server: Server) -> bool:
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    return bool(children.read_text())


@pytest.mark.slow
def test_health_answers_while_a_step_hangs(model: Path) -> None:
    with stub_server(model) as server:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                server.address + "/v1/completions",
                json={"model": "library", "prompt": "HANG"},
                timeout=1.5,
            )
        health = until(
            lambda: (found := server.get("/health").json())["step_age_seconds"] > 1 and found,
            "a growing step",
        )
        assert health["status"] == "ok"
        server.process.terminate()
        assert server.process.wait(60) == 0
