"""The process of the engine: `python -m ridgeline.serve.process.host SOCKET_FD module:Engine`.

The supervisor starts it with one end of a socket pair. The main thread alone drives the engine, so
torch's threads belong to it. Two side threads only move bytes: one reads messages into a queue, one
writes what came out and, at least every second, a heartbeat, however long a step takes. What a
message needs that may take long (a grammar compiled, an adapter's files examined) waits on a thread
of its own for a process of its own, and the message comes to the engine when that is done. None of
these threads computes with torch.

SIGINT and SIGTERM are the server's business (a terminal or systemd sends them to every process):
the engine ends when its socket does, that is with the server, whatever ended that. Where the server
was killed, Linux kills the engine too: one that is stopped, or hangs in C++, reads no socket.
"""

from __future__ import annotations

import gc
import importlib
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec

from ridgeline.errors import RidgelineError
from ridgeline.hardware.freed_memory import LARGE_BYTES, return_freed_memory
from ridgeline.measure.parent_death import die_with_parent
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.messages import Abort, Delta, Failed, FromEngine, Ready, Stats, ToEngine
from ridgeline.serve.process.frames import config as config_decoder
from ridgeline.serve.process.frames import frame, read_frame, to_engine

HEARTBEAT_SECONDS = 0.5
PAUSE_SECONDS = 0.5
"""Without a message for so long, an engine without work has time for other things."""
STEP_MAY_STILL_TAKE_SECONDS = 5.0
"""Once the server has gone, for the step under way and for closing."""


class HostedEngine(Protocol):
    """An engine as the host drives it: `engine.engine.ServingEngine`, or a stub of it in tests."""

    ready: Ready

    def watch(self, lost: Callable[[str], None]) -> None:
        """Have `lost` called, from any thread, with a line that says why it cannot go on."""

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""

    def preparation(self, message: ToEngine) -> Callable[[], ToEngine] | None:
        """What is to be done on a thread before a message is handled; None: nothing."""

    def refuse(self, message: ToEngine, error: BaseException) -> None:
        """Let `take` say why a message is not served."""

    def handle(self, message: ToEngine) -> None:
        """Take a message; what is wrong with it comes out of `take`."""

    def step(self) -> None:
        """Do one step of all that is open."""

    def take(self) -> list[FromEngine]:
        """The messages that have come out since the last call."""

    def stats(self) -> Stats:
        """The engine's state and its counters."""

    def close(self) -> None:
        """Free everything that is held."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A message whose preparation has ended."""

    message: ToEngine
    error: BaseException | None = None


class Host:
    """Drives one engine over one socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._inbox: queue.SimpleQueue[list[ToEngine | _Prepared] | None] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._stats: Stats | None = None
        self._step_began: float | None = None
        self._preparing: set[str] = set()
        """The ids of messages that threads prepare."""

        # From the start, so that a server that goes while the engine loads takes it along.
        threading.Thread(target=self._read, name="engine-reader", daemon=True).start()

    def run(self, engine: HostedEngine) -> None:
        """Serve until the other side closes."""
        self._stats = engine.stats()
        self._outbox.put(frame([engine.ready]))
        writer = threading.Thread(target=self._write, name="engine-writer", daemon=True)
        writer.start()
        engine.watch(partial(self._lost, writer))
        try:
            self._drive(engine)
        finally:
            self._outbox.put(None)
            writer.join(STEP_MAY_STILL_TAKE_SECONDS)
        engine.close()

    def _lost(self, writer: threading.Thread, why: str) -> None:
        """End this process at once: its main thread may wait for ever for what has gone."""
        self._outbox.put(frame([Failed(message=why)]))
        self._outbox.put(None)
        writer.join(STEP_MAY_STILL_TAKE_SECONDS)
        os._exit(1)

    def _drive(self, engine: HostedEngine) -> None:
        assert self._stats is not None
        while self._receive(engine):
            self._step_began = time.monotonic()
            if engine.has_work:
                engine.step()
            out = engine.take()
            stats = engine.stats()
            if stats.adapters != self._stats.adapters or any(map(_ends, out)):
                out.insert(0, stats)  # first, so that names and counts are known with the answer
            self._stats = stats
            self._step_began = None
            if out:
                self._outbox.put(frame(out))

    def _receive(self, engine: HostedEngine) -> bool:
        """Hand over all that has come; waits where the engine has nothing else to do."""
        wait = not engine.has_work
        while True:
            try:
                messages = self._next() if wait else self._inbox.get(block=False)
            except queue.Empty:
                return True
            if messages is None:
                return False
            for message in messages:
                self._take(engine, message)
            wait = False

    def _next(self) -> list[ToEngine | _Prepared] | None:
        """What comes next, however long it takes; a pause gives memory back to the system."""
        try:
            return self._inbox.get(timeout=PAUSE_SECONDS)
        except queue.Empty:
            return_freed_memory(LARGE_BYTES)
            return self._inbox.get()

    def _take(self, engine: HostedEngine, message: ToEngine | _Prepared) -> None:
        if isinstance(message, _Prepared):
            if message.message.id not in self._preparing:
                return  # aborted meanwhile
            self._preparing.discard(message.message.id)
            if message.error is None:
                engine.handle(message.message)
            else:
                engine.refuse(message.message, message.error)
            return
        if isinstance(message, Abort):
            self._preparing.discard(message.id)
        try:
            work = engine.preparation(message)
        except Exception as error:  # of this message
            engine.refuse(message, error)
            return
        if work is None:
            engine.handle(message)
            return
        self._preparing.add(message.id)
        threading.Thread(
            target=self._prepare, args=(message, work), name="engine-preparation", daemon=True
        ).start()

    def _prepare(self, message: ToEngine, work: Callable[[], ToEngine]) -> None:
        try:
            done = _Prepared(work())
        except BaseException as error:  # whatever it is, someone waits for a reply
            done = _Prepared(message, error)
        self._inbox.put([done])

    def _read(self) -> None:
        try:
            while (body := read_frame(self._connection)) is not None:
                self._inbox.put([*to_engine.decode(body)])
        except Exception:  # it is none of our messages; deaf, the engine would be of no use
            traceback.print_exc()
        self._inbox.put(None)
        time.sleep(STEP_MAY_STILL_TAKE_SECONDS)
        os._exit(1)  # the step hangs, and nobody waits for it any more

    def _write(self) -> None:
        """Whatever comes; a heartbeat when due. The last step's counters, read by nobody else."""
        due = 0.0
        while True:
            try:
                data = self._outbox.get(timeout=max(0.0, due - time.monotonic()))
            except queue.Empty:
                data = b""
            if data is None:
                return
            now = time.monotonic()
            if now >= due:
                data += frame([self._heartbeat(now)])
                due = now + HEARTBEAT_SECONDS
            try:
                self._connection.sendall(data)
            except OSError:
                return  # the reader has seen the end too

    def _heartbeat(self, now: float) -> Stats:
        assert self._stats is not None
        began = self._step_began
        age = 0.0 if began is None else max(0.0, now - began)
        return msgspec.structs.replace(self._stats, at=now, step_age_seconds=age)


def _ends(message: FromEngine) -> bool:
    """Whether an answer ends with a message."""
    return isinstance(message, Delta) and message.finish_reason is not None


def main() -> int:
    """Read the configuration, build the engine, serve; the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with_parent()
    connection = socket.socket(fileno=int(sys.argv[1]))
    body = read_frame(connection)
    if body is None:
        return 1
    try:
        host = Host(connection)
        host.run(_build(sys.argv[2], config_decoder.decode(body)))
    except RidgelineError as error:
        return _fail(connection, " ".join(str(error).split()), error.exit_code)
    except Exception as error:  # the server says so in one line; the trace is for us
        traceback.print_exc()
        return _fail(connection, f"the engine failed: {type(error).__name__}: {error}", 1)
    return 0


def _build(factory: str, config: EngineConfig) -> HostedEngine:
    module, _, name = factory.partition(":")
    gc.disable()  # what is imported and built stays: looking through it again and again finds none
    try:
        build: Any = getattr(importlib.import_module(module), name)
        built: HostedEngine = build(config)
    finally:
        gc.freeze()
        gc.enable()
    return built


def _fail(connection: socket.socket, message: str, exit_code: int) -> int:
    line = " ".join(message.split())
    try:
        connection.sendall(frame([Failed(message=line, exit_code=exit_code)]))
    except OSError:
        sys.stderr.write(line + "\n")
    return exit_code


def _end(code: int) -> None:
    """End this process without the farewells of libraries.

    Triton's bindings, which torch's compiler brings along, print what was not freed: some thirty
    lines before the one that says why the engine ended.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _end(main())
