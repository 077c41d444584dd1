"""What runs in the process of a stage: it takes a frame by its place and answers with another.

The process is a fork, so the stage's code and weights are the parent's at the beginning of the run.
Its calls run in a thread of their own: OpenMP's pool belongs to the thread that made it, and the
main thread's, which the parent may have used, has not survived the fork. It dies with the parent,
however that ends (`measure/parent_death.py`), and Ctrl-C is the parent's business.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from ridgeline.measure.parent_death import die_with_parent
from ridgeline.realtime.executors.arenas import Arena, MemorySlot
from ridgeline.realtime.executors.calls import CallOutcome, StageCaller, failure
from ridgeline.realtime.executors.payloads import SharedPayload, pack, unpack
from ridgeline.realtime.pipeline import StageCode
from ridgeline.realtime.steady import Steadiness
from ridgeline.records.realtime_run import CallMode, Collection, SteadyMeasure


class CallMessage(msgspec.Struct, frozen=True, array_like=True):
    """The parent asks for a frame to be run."""

    mode: CallMode
    inputs: tuple[SharedPayload, ...]
    offered: MemorySlot | None
    """Where the result may be laid."""


class ReplyMessage(msgspec.Struct, frozen=True, array_like=True):
    """What the parent is told of how a call ended.

    Times are `time.monotonic`'s, which all processes share, and those of the stage's code alone:
    laying the result down comes after it.
    """

    started: float
    ended: float
    cpu_seconds: float
    payload: SharedPayload | None
    """The result's place; None: the call failed."""
    failure: str
    place: str
    kept: tuple[MemorySlot, ...]
    """All slots that the stage still points into, as one that remembers the frame before does."""


class FarewellMessage(msgspec.Struct, frozen=True, array_like=True):
    """What the parent is told after the last frame: what was done for steadiness here."""

    measures: list[SteadyMeasure]
    collections: list[Collection]


CALLS = msgspec.msgpack.Decoder(CallMessage)
REPLIES = msgspec.msgpack.Decoder(ReplyMessage)
FAREWELLS = msgspec.msgpack.Decoder(FarewellMessage)
READY = b"ready"
STOP = b""


class StageWorker:
    """What runs in a stage's process.

    Args:
        stage: Its name.
        arena: Where it lays its results.
        period_seconds: Time between two frames of the fastest sensor; None: one has no rate.
        warmup: Frames after which what is alive lives on.
    """

    def __init__(
        self,
        stage: str,
        code: StageCode,
        arena: Arena,
        arenas: Sequence[Arena],
        *,
        steady: Steadiness | None,
        warmup: int,
        period_seconds: float | None,
    ) -> None:
        self._stage = stage
        self._caller = StageCaller(code)
        self._arena = arena
        self._arenas = arenas
        self._steady = steady
        self._warmup = warmup
        self._period_seconds = period_seconds
        self._kept: dict[MemorySlot, list[weakref.ref[Any]]] = {}

    def main(self, parent: int, connection: Connection, others: Sequence[Connection]) -> None:
        """Serve calls until the parent says stop; the body of the process."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        die_with_parent(parent)
        for other in others:
            other.close()
        thread = threading.Thread(target=self._work, args=(connection,), name=self._stage)
        thread.start()
        thread.join()

    def _work(self, connection: Connection) -> None:
        try:
            self._serve(connection)
        except (EOFError, ConnectionError):  # the parent is gone
            os._exit(1)
        except BaseException:  # SystemExit of a stage too: the parent reports it
            traceback.print_exc()
            os._exit(1)

    def _serve(self, connection: Connection) -> None:
        steady = self._steady
        born = time.monotonic()
        if steady is not None:
            steady.enter_worker(self._stage)
        connection.send_bytes(READY)
        done = 0
        while message := connection.recv_bytes():
            received = time.monotonic()
            connection.send_bytes(msgspec.msgpack.encode(self._run(CALLS.decode(message))))
            done += 1
            if steady is None:
                continue
            if done == self._warmup:
                steady.warmed_up()
            elif self._period_seconds is not None:
                slack = received + self._period_seconds - time.monotonic()
                if slack > 0:
                    steady.idle(slack)
        if steady is not None:
            steady.stop()
            own = [one for one in steady.collections if one.started >= born]
            farewell = FarewellMessage(list(steady.measures), own)
            connection.send_bytes(msgspec.msgpack.encode(farewell))

    def _run(self, message: CallMessage) -> ReplyMessage:
        inputs = [self._opened(payload) for payload in message.inputs]
        outcome = self._caller(message.mode, tuple(inputs))
        inputs.clear()
        payload = self._lay_down(outcome, message.offered)
        outcome.output = None
        return ReplyMessage(
            outcome.started,
            outcome.ended,
            outcome.cpu_seconds,
            payload,
            outcome.failure,
            outcome.place,
            self._still_kept(),
        )

    def _opened(self, payload: SharedPayload) -> Any:
        value, alive = unpack(payload, self._arenas)
        if payload.slot is not None:
            self._kept.setdefault(payload.slot, []).extend(alive)
        return value

    def _lay_down(self, outcome: CallOutcome, offered: MemorySlot | None) -> SharedPayload | None:
        if outcome.failure:
            return None
        try:
            return pack(outcome.output, self._arena, offered)
        except Exception as error:  # pickle calls the user's own code
            outcome.failure = f"its result cannot be sent: {failure(error)}"
            return None

    def _still_kept(self) -> tuple[MemorySlot, ...]:
        kept = self._kept
        for slot in [slot for slot, alive in kept.items() if all(one() is None for one in alive)]:
            del kept[slot]
        for slot, alive in kept.items():
            kept[slot] = [one for one in alive if one() is not None]
        return tuple(kept)
