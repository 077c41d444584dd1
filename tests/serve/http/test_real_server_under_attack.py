"""`ridgeline serve` on a real model, killed, stopped and told to end under load: exact tokens."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.serve.http.servers import LIBRARY, Server, gone, running, sse, until

pytestmark = pytest.mark.slow

WORDS = ("ridgeline.cli.main", "serve", str(LIBRARY), "--port", "0", "--dtype", "fp32")
WORDS = (*WORDS, "--kv-bytes", "16MiB", "--threads", "1")
PROMPTS = [
    *("def read(self, ", "class Path(", "import os\n", "raise ValueError("),
    *("return self.", "for line in ", "while True:\n", "if __name__ == "),
]
NUM_TOKENS = 40


@contextmanager
def serving(*words: str) -> Iterator[Server]:
    with running(*WORDS, *words) as server:
        server.wait_until_ready()
        yield server


def answer(server: Server, number: int, *, stream: bool = False) -> str:
    """The text; or, in brackets, what came instead."""
    asked = {
        "model": "library", "prompt": PROMPTS[number % len(PROMPTS)], "max_tokens": NUM_TOKENS,
        "temperature": 0, "ignore_eos": True, "stream": stream,
    }  # fmt: skip
    try:
        response = server.post("/v1/completions", asked)
    except httpx.TransportError:
        return "[lost]"
    if response.status_code != 200:
        return f"[{response.status_code}]"
    documents = sse(response) if stream else [response.json()]
    if "error" in documents[-1]:
        return "[cut]"
    return "".join(choice["text"] for one in documents for choice in one["choices"])


@contextmanager
def load(server: Server, alone: list[str]) -> Iterator[Counter[str]]:
    """Six at a time, until the end of the block; each is whole, and right, or says why not."""
    found: Counter[str] = Counter()
    numbers, enough = iter(range(10**6)), threading.Event()

    def ask() -> None:
        while not enough.is_set():
            number = next(numbers)
            text = answer(server, number, stream=number % 2 == 0)
            whole = text == alone[number % len(PROMPTS)]
            found["whole" if whole else text] += 1

    with ThreadPoolExecutor(6) as pool:
        asking = [pool.submit(ask) for _ in range(6)]
        try:
            until(lambda: found["whole"] > 6, "a load")
            yield found
        finally:
            enough.set()
    for one in asking:
        one.result()


def test_killed_stopped_and_drained_under_load_every_whole_answer_is_exact() -> None:
    with serving() as server:
        alone = [answer(server, number) for number in range(len(PROMPTS))]
        assert len(set(alone)) > 4
        first = server.engine_pid()
        with load(server, alone) as found:
            os.kill(first, signal.SIGKILL)
            until(lambda: server.get("/ready").status_code == 503, "the engine's end")
            until(lambda: server.get("/ready").status_code == 200, "its return")
            since = found["whole"]
            until(lambda: found["whole"] > since + 6, "answers")
        assert set(found) <= {"whole", "[cut]", "[503]"}
        assert found["[cut]"] <= 3

        second = server.engine_pid()
        with load(server, alone) as found:
            os.kill(second, signal.SIGSTOP)
            silent = until(
                lambda: (one := server.get("/health").json())["status"] == "silent" and one,
                "silence",
            )
            assert silent["heartbeat_age_seconds"] > 10
            assert server.get("/health").status_code == 503
            until(lambda: gone(second), "its end")
            until(lambda: server.get("/ready").status_code == 200, "the engine's return")
            since = found["whole"]
            until(lambda: found["whole"] > since + 6, "answers")
        assert set(found) <= {"whole", "[cut]", "[503]", "[lost]"}
        assert any("no heartbeat" in str(one.get("why")) for one in server.events)

        third = server.engine_pid()
        with load(server, alone) as found:
            server.process.terminate()
            assert server.process.wait(60) == 0
        assert set(found) <= {"whole", "[503]", "[lost]"}  # refused, or nobody listens any more
        assert gone(third)
        assert "Traceback" not in server.log


def test_an_engine_killed_while_it_loads_is_one_line() -> None:
    with running(*WORDS) as server:
        (engine,) = until(lambda: _children(server), "the engine's process")
        maps = Path(f"/proc/{engine}/maps")
        until(lambda: "libtorch" in maps.read_text(), "its imports to be under way")
        os.kill(engine, signal.SIGKILL)
        assert server.process.wait(60) == 1
        (line,) = server.log.strip().splitlines()
        assert line.startswith("ridgeline: the engine ended with signal 9 before it was up")


def test_two_engines_that_hand_over_leave_no_shared_memory_when_all_is_killed() -> None:
    with serving("--disaggregated") as server:
        alone = [answer(server, number) for number in range(len(PROMPTS))]
        before = _shared()
        engines = server.engine_pids()
        assert len(engines) == 2
        with load(server, alone) as found:
            server.process.kill()
            server.process.wait(60)
            until(lambda: found["[lost]"], "lost connections")
        assert set(found) <= {"whole", "[lost]"}
        until(lambda: all(map(gone, engines)), "the engines' end")
        until(lambda: _shared() <= before, "free shared memory")


def _children(server: Server) -> list[int]:
    path = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    return [int(pid) for pid in path.read_text().split()]


def _shared() -> set[str]:
    return {one.name for one in Path("/dev/shm").iterdir()}
