"""The processes that tokenise, and the pieces they are given one after another."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ridgeline.errors import ChildDied, InputError
from ridgeline.hardware.cgroups import cgroup_limits
from ridgeline.train.data.tokenise import Piece, TokeniseEvent, TokeniseJob, encoder, tokenise

_MODULE = "ridgeline.train.data.tokenise"
_LITTLE_BYTES = 10 * 2**20
"""Python's part of the work, which threads do one at a time, takes about 0.02 s a megabyte;
processes take about 0.2 s to start."""


def run_pieces(job: TokeniseJob, pieces: list[Piece]) -> Iterator[TokeniseEvent]:
    """Tokenise pieces on all cores; events come as they happen.

    Little text is tokenised here, by threads of the tokenizer; more by processes, which do in
    parallel what threads cannot: reading, and what is Python's part in the rest.

    Raises:
        InputError: A piece cannot be read.
        ChildDied: A process ended of itself.
    """
    if not pieces:
        return
    text_bytes = sum(span.weight_bytes for piece in pieces for span in piece.spans)
    has_threads = (Path(job.tokenizer) / "tokenizer.json").is_file()
    count = min(num_processes(), len(pieces))
    if count == 1 or (has_threads and text_bytes < _LITTLE_BYTES):
        yield from _here(job, pieces)
    else:
        yield from _Team(job, pieces, count).events()


def num_processes() -> int:
    """Cores that this process may use."""
    cores = cgroup_limits(Path("/")).cores
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(allowed or 1, int(cores) if cores else allowed or 1))


def _here(job: TokeniseJob, pieces: list[Piece]) -> Iterator[TokeniseEvent]:
    encode = encoder(Path(job.tokenizer))
    for piece in pieces:
        events: list[TokeniseEvent] = []
        done = tokenise(job, encode, piece, events.append)
        yield from events
        yield TokeniseEvent(done=done)


class _Team:
    """Processes that each hold one piece at a time."""

    def __init__(self, job: TokeniseJob, pieces: list[Piece], count: int) -> None:
        self._job = job
        self._left = list(reversed(pieces))
        self._count = count
        self._news: queue.SimpleQueue[tuple[subprocess.Popen[bytes], TokeniseEvent | None]]
        self._news = queue.SimpleQueue()

    def events(self) -> Iterator[TokeniseEvent]:
        team = [self._start() for _ in range(self._count)]
        busy = 0
        try:
            for child in team:
                busy += self._give(child)
            while busy:
                child, event = self._news.get()
                if event is None:
                    raise ChildDied(f"a tokenising process ended with code {child.wait()}")
                if event.problem:
                    raise InputError(event.problem)
                yield event
                if event.done is not None:
                    busy += self._give(child) - 1
        finally:
            for child in team:
                child.kill()
                child.wait()
                assert child.stdin is not None
                assert child.stdout is not None
                child.stdin.close()

    def _start(self) -> subprocess.Popen[bytes]:
        source = str(Path(__file__).parents[3])
        path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
        child = subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert child.stdin is not None
        child.stdin.write(msgspec.json.encode(self._job) + b"\n")
        child.stdin.flush()
        threading.Thread(target=self._listen, args=(child,), daemon=True).start()
        return child

    def _listen(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        with child.stdout as lines:
            for line in lines:
                self._news.put((child, msgspec.json.decode(line, type=TokeniseEvent)))
        self._news.put((child, None))

    def _give(self, child: subprocess.Popen[bytes]) -> int:
        """Hand over the next piece; 0 if there is none."""
        if not self._left:
            return 0
        assert child.stdin is not None
        child.stdin.write(msgspec.json.encode(self._left.pop()) + b"\n")
        child.stdin.flush()
        return 1
