"""An engine that can hand over the KV of a prefilled request, and take over another's.

It is hosted like any other: `Supervisor(config, factory=disaggregated.EXCHANGE)`. Torch runs in
the main thread only; a fetch waits in a thread of its own and moves bytes, so that the running
sequences go on decoding meanwhile.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec

from ridgeline.batching.policies import QueueFull, Refusal
from ridgeline.errors import InputError, RidgelineError
from ridgeline.serve.cache import SequenceKv
from ridgeline.serve.cluster.kv_transfer import (
    Header,
    KvTransferFailed,
    KvTransfers,
    fetch,
    pack,
    unpack,
)
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.messages import (
    Abort,
    Exported,
    ExportKV,
    FromEngine,
    ImportKV,
    Refused,
    ReleaseKV,
    Stats,
    Submit,
    ToEngine,
)
from ridgeline.serve.process.host import HostedEngine

WAIT_SECONDS = 0.01
"""The wait where there is nothing to compute and a fetch is under way."""


class KvEngine(HostedEngine, Protocol):
    """A hosted engine whose requests' KV can be sent and received; `ServingEngine` is one."""

    def export_kv(self, request_id: str) -> SequenceKv:
        """A copy of the KV of a request that ended with `handover`; its blocks are free again."""

    def import_kv(self, submit: Submit, kv: SequenceKv) -> None:
        """Begin with what another engine has computed."""


Fetched = tuple[ImportKV, Header | None, list[bytearray], str]
"""The request, what came for it, and what went wrong."""


class _Fetches:
    """Counts of the KV that has come from elsewhere; a thread for each fetch notes its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = self.bytes = 0
        self.seconds = 0.0

    def note(self, pieces: list[bytearray], seconds: float) -> None:
        with self._lock:
            self.count += 1
            self.bytes += sum(map(len, pieces))
            self.seconds += seconds


class KvTransferEngine:
    """An engine that hands over KV and takes it over, around one that computes."""

    def __init__(self, engine: KvEngine) -> None:
        self.ready = engine.ready
        self._engine = engine
        self._transfers = KvTransfers()
        self._fetched: queue.SimpleQueue[Fetched] = queue.SimpleQueue()
        self._fetching: set[str] = set()
        self._fetches = _Fetches()
        self._out: list[FromEngine] = []

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something: compute, or take in what was fetched."""
        return self._engine.has_work or bool(self._fetching)

    def watch(self, lost: Callable[[str], None]) -> None:
        """Have it told that the engine cannot go on, as the engine says."""
        self._engine.watch(lost)

    def preparation(self, message: ToEngine) -> Callable[[], ToEngine] | None:
        """What of a message is to be done on a thread, as the engine says."""
        if not isinstance(message, ImportKV):
            return self._engine.preparation(message)
        work = self._engine.preparation(message.submit)
        return None if work is None else partial(_prepared, message, work)

    def refuse(self, message: ToEngine, error: BaseException) -> None:
        """Let `take` say why a message is not served."""
        self._engine.refuse(message, error)

    def handle(self, message: ToEngine) -> None:
        """Take a message; what is wrong with it comes out of `take`."""
        match message:
            case ExportKV():
                self._export(message)
            case ReleaseKV():
                self._transfers.release(message.id)
            case ImportKV():
                self._fetching.add(message.id)
                threading.Thread(
                    target=self._fetch, args=(message,), name="kv-fetch", daemon=True
                ).start()
            case Abort():
                self._fetching.discard(message.id)
                self._transfers.release(message.id)
                self._engine.handle(message)
            case _:
                self._engine.handle(message)

    def step(self) -> None:
        """Take in what has come, then compute a step."""
        busy = self._engine.has_work
        try:
            while True:
                self._import(
                    self._fetched.get(timeout=None if busy else WAIT_SECONDS, block=not busy)
                )
                busy = True
        except queue.Empty:
            pass
        if self._engine.has_work:
            self._engine.step()

    def take(self) -> list[FromEngine]:
        """The messages that have come out since the last call."""
        out, self._out = self._out, []
        return out + self._engine.take()

    def stats(self) -> Stats:
        """The engine's state and its counters."""
        self._transfers.expire()
        fetches = self._fetches
        return msgspec.structs.replace(
            self._engine.stats(),
            kv_transfers=fetches.count,
            kv_transfer_bytes=fetches.bytes,
            kv_transfer_seconds=fetches.seconds,
        )

    def close(self) -> None:
        """Free everything that is held."""
        self._transfers.close()
        self._engine.close()

    def _export(self, message: ExportKV) -> None:
        try:
            payload = pack(self._engine.export_kv(message.id))
            address = self._transfers.offer(
                message.id, payload, message.over, message.listen, message.cluster_key
            )
        except RidgelineError as error:
            self._refuse(message.id, str(error), 503)
        else:
            self._out.append(Exported(id=message.id, address=address, bytes=payload.num_bytes))

    def _fetch(self, message: ImportKV) -> None:
        try:
            began = time.monotonic()
            header, pieces = fetch(message.address, message.cluster_key)
            self._fetches.note(pieces, time.monotonic() - began)
            self._fetched.put((message, header, pieces, ""))
        except KvTransferFailed as error:
            self._fetched.put((message, None, [], str(error)))
        except Exception as error:  # else the request would hang for ever
            self._fetched.put((message, None, [], f"{type(error).__name__}: {error}"))

    def _import(self, fetched: Fetched) -> None:
        message, header, pieces, wrong = fetched
        if message.id not in self._fetching:
            return  # aborted meanwhile
        self._fetching.discard(message.id)
        if header is None:
            self._refuse(message.id, wrong, 503)
            return
        try:
            self._engine.import_kv(message.submit, unpack(header, pieces))
        except QueueFull as error:
            self._refuse(message.id, str(error), 429)
        except KvTransferFailed as error:
            self._refuse(message.id, str(error), 503)
        except (Refusal, RidgelineError, ValueError) as error:
            self._refuse(message.id, str(error), 400)
        except Exception as error:  # unforeseen: it is this request's alone
            self._engine.refuse(message, error)

    def _refuse(self, request_id: str, text: str, status: int) -> None:
        line = " ".join(text.split())
        self._out.append(Refused(id=request_id, message=line, status=status))


def _prepared(message: ImportKV, work: Callable[[], ToEngine]) -> ImportKV:
    work()  # of the same request
    return message


def engine(config: EngineConfig) -> KvTransferEngine:
    """What the host builds.

    Raises:
        InputError: The model cannot be served as configured.
    """
    from ridgeline.serve.engine.engine import ServingEngine

    built = ServingEngine(config)
    if built.model.recurrent is not None:
        raise InputError(
            f"{config.model} has layers that keep a state of each sequence, which is not handed"
            " over between engines; serve it without --disaggregated and --role"
        )
    return KvTransferEngine(built)
