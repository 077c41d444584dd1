"""A server whose model is cut over two ranks, one of which is killed."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serve.engine.workloads import tiny_engine, write_tiny_llama
from tests.serve.http.servers import LIBRARY, Server, gone, running, until

from ridgeline.serve.engine import ranks

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
WORDS = ["--port", "0", "--tp", "2", "--dtype", "fp32", "--kv-bytes", "32MiB"]
SHORT = {"model": "library", "prompt": "def main", "max_tokens": 16, "temperature": 0}
LONG = {**SHORT, "max_tokens": 900, "ignore_eos": True, "stream": True}


def rank_of(server: Server) -> int:
    """The process of rank 1."""
    found = subprocess.run(
        ["pgrep", "-P", str(server.engine_pid()), "-f", "rank_process"],
        capture_output=True,
        check=True,
    )
    return int(found.stdout.split()[0])


def kill_and_wait(server: Server, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(rank_of(server), number)
    until(lambda: server.get("/ready").status_code == 503, "the end of the group")
    end = time.monotonic() + 150
    while server.get("/ready").status_code != 200:
        assert time.monotonic() < end, server.log[-2000:]
        time.sleep(0.25)


def metric(server: Server, name: str) -> float:
    found = re.search(rf"^{name}{{.*}} (\S+)$", server.get("/metrics").text, re.MULTILINE)
    assert found, name
    return float(found[1])


def test_open_requests_end_with_the_reason_and_the_group_starts_again() -> None:
    with running("ridgeline.cli.main", "serve", str(LIBRARY), *WORDS) as server:
        server.wait_until_ready()
        expected = server.post("/v1/completions", SHORT).json()["choices"][0]["text"]
        until(lambda: metric(server, "ridgeline_collective_seconds_total") > 0, "the first report")
        assert metric(server, "ridgeline_collective_seconds_total") < metric(
            server, "ridgeline_step_seconds_total"
        )
        streams: list[str] = []
        whole: list[Any] = []

        def ask() -> None:
            streams.append(server.post("/v1/completions", LONG).text)

        def ask_whole() -> None:
            url = f"{server.address}/v1/completions"
            whole.append(httpx.post(url, json={**LONG, "stream": False}, timeout=60))

        asking = [threading.Thread(target=one) for one in (ask, ask, ask_whole)]
        for one in asking:
            one.start()
        until(lambda: metric(server, "vllm:num_requests_running") == 3, "three requests")
        killed = rank_of(server)
        kill_and_wait(server)
        for one in asking:
            one.join()
        said = f"rank 1 (process {killed}) ended with signal 9"
        assert all(said in text for text in streams), streams[0][-500:]
        assert whole[0].status_code == 503
        assert said in whole[0].json()["error"]["message"]
        assert any(said in str(event.get("why")) for event in server.events)
        assert server.post("/v1/completions", SHORT).json()["choices"][0]["text"] == expected

        kill_and_wait(server)  # while there is nothing to compute
        assert server.post("/v1/completions", SHORT).json()["choices"][0]["text"] == expected

        engine, rank = server.engine_pid(), rank_of(server)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
        assert gone(engine)
        assert gone(rank)


def test_no_rank_outlives_a_server_that_was_killed(tmp_path: Path) -> None:
    words = ["ridgeline.cli.main", "serve", str(LIBRARY), *WORDS]
    with running(*words, TMPDIR=str(tmp_path)) as server:
        server.wait_until_ready()
        engine, rank = server.engine_pid(), rank_of(server)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(10)
        until(lambda: gone(engine) and gone(rank), "the end of all ranks")
    left = set(tmp_path.glob("ridgeline-ranks-*"))
    assert len(left) == 1  # nobody was left to remove it
    with running(*words, TMPDIR=str(tmp_path)) as server:
        server.wait_until_ready()
        assert not left & set(tmp_path.glob("ridgeline-ranks-*"))
        kill_and_wait(server)
        assert len(list(tmp_path.glob("ridgeline-ranks-*"))) == 1
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
    assert not list(tmp_path.glob("ridgeline-ranks-*"))


def test_a_rank_that_is_stopped_ends_the_group_with_its_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "SILENCE_SECONDS", 3.0)
    engine = tiny_engine(write_tiny_llama(tmp_path), tp=2)
    said: queue.Queue[str] = queue.Queue()
    try:
        engine.watch(said.put)
        found = subprocess.run(
            ["pgrep", "-P", str(os.getpid()), "-f", "rank_process"], capture_output=True, check=True
        )
        stopped = int(found.stdout)
        os.kill(stopped, signal.SIGSTOP)
        why = said.get(timeout=60)
    finally:
        engine.close()
    assert why == f"rank 1 (process {stopped}) ended with signal 9: it was silent for 3 s"
