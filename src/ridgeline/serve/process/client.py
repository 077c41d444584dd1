"""The API's side of an engine: requests go out, what they bring comes back (asyncio).

A client outlives the engine processes that the supervisor gives it. While there is none, and when
one ends, every request gets a `RequestRefused` with status 503: nobody waits for ever.

`EngineLink` is what the API needs of an engine, or of several behind a router.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from ridgeline.serve.messages import (
    Abort,
    Delta,
    Done,
    Embed,
    Embedded,
    Exported,
    ExportKV,
    Failed,
    FromEngine,
    ImportKV,
    LoadAdapter,
    Ready,
    Refused,
    ReleaseKV,
    Stats,
    Submit,
    ToEngine,
    UnloadAdapter,
)
from ridgeline.serve.process.frames import frame, from_engine, next_frame

Answer = Delta | Embedded | Done | Exported | Refused
Question = Submit | ImportKV | Embed | LoadAdapter | UnloadAdapter | ExportKV
"""What is answered."""


class RequestRefused(Exception):
    """The engine does not serve this request, or no longer; `refusal` says why."""

    def __init__(self, refusal: Refused) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class EngineLink(Protocol):
    """What the API asks of an engine; `EngineClient` of one, `cluster.router.Router` of several."""

    @property
    def ready(self) -> Ready | None:
        """What the engine said when it came up; None while there is none."""

    @property
    def stats(self) -> Stats | None:
        """The last heartbeat."""

    @property
    def heartbeat_age_seconds(self) -> float:
        """Since the last heartbeat came."""

    def submit(self, submit: Submit) -> AsyncIterator[Delta]:
        """Deltas of all `n` answers; closing the iterator early aborts. Raises RequestRefused."""

    async def abort(self, request_id: str) -> None:
        """Nobody waits for this request any more; unknown ids are no error."""

    async def embed(
        self, prompts: tuple[tuple[int, ...], ...], adapter: str = ""
    ) -> tuple[tuple[float, ...], ...]:
        """One vector per prompt, by the model or an adapter of it. Raises RequestRefused."""

    @property
    def adapters(self) -> dict[str, str]:
        """Name → path of those that it has, or is to have when it has started again."""

    async def load_adapter(self, name: str, path: str) -> None:
        """Raises RequestRefused."""

    async def unload_adapter(self, name: str) -> None:
        """Raises RequestRefused."""


class EngineClient:
    """One engine; an `EngineLink`, and a `cluster.disaggregated.KvLink` where it hands KV over."""

    def __init__(self, adapters: Mapping[str, str] | None = None) -> None:
        """There is no engine yet.

        Args:
            adapters: Name → path of those that it begins with.
        """
        self.adapters = dict(adapters or {})
        self.ready: Ready | None = None
        self.stats: Stats | None = None
        self.failed: Failed | None = None
        """What the engine said before it ended, if it did."""
        self.up = asyncio.Event()
        self.down = asyncio.Event()
        self._heartbeat_at = time.monotonic()
        self._writer: asyncio.StreamWriter | None = None
        self._open: dict[str, asyncio.Queue[Answer]] = {}
        self._numbers = itertools.count()

    @property
    def heartbeat_age_seconds(self) -> float:
        """Since the last heartbeat came, or since there is no engine."""
        return time.monotonic() - self._heartbeat_at

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take what the engine sends until it ends; then every open request is refused."""
        self._writer, self.failed = writer, None
        self._heartbeat_at = time.monotonic()
        try:
            while (body := await next_frame(reader)) is not None:
                for message in from_engine.decode(body):
                    self._take(message)
        finally:
            self._writer, self.ready, self.stats = None, None, None
            self.up.clear()
            self.down.set()
            self._heartbeat_at = time.monotonic()
            text = "the engine ended while it worked on this request; try again"
            for request_id, queue in self._open.items():
                queue.put_nowait(Refused(id=request_id, message=text, status=503))
            writer.close()

    def _take(self, message: FromEngine) -> None:
        match message:
            case Stats():
                self.stats, self._heartbeat_at = message, time.monotonic()
            case Ready():
                self.ready = message
                self.up.set()
                self.down.clear()
            case Failed():
                self.failed = message
            case _:
                queue = self._open.get(message.id)
                if queue is not None:  # else it was aborted a moment ago
                    queue.put_nowait(message)

    async def submit(self, submit: Submit | ImportKV) -> AsyncIterator[Delta]:
        """Deltas of all `n` answers; closing the iterator early aborts. Raises RequestRefused."""
        running = set(range(submit.n))
        queue = self._send(submit)
        try:
            while running:
                answer = await queue.get()
                assert isinstance(answer, (Delta, Refused))
                if isinstance(answer, Refused):
                    running.clear()
                    raise RequestRefused(answer)
                if answer.finish_reason is not None:
                    running.discard(answer.index)
                yield answer
        finally:
            del self._open[submit.id]
            if running:
                self._write(Abort(id=submit.id))

    async def abort(self, request_id: str) -> None:
        """Nobody waits for this request any more; unknown ids are no error."""
        self._write(Abort(id=request_id))

    async def embed(
        self, prompts: tuple[tuple[int, ...], ...], adapter: str = ""
    ) -> tuple[tuple[float, ...], ...]:
        """One vector per prompt, by the model or an adapter of it. Raises RequestRefused."""
        answer = await self._ask(Embed(id=self._number("embed"), prompts=prompts, adapter=adapter))
        assert isinstance(answer, Embedded)
        return answer.vectors

    async def load_adapter(self, name: str, path: str) -> None:
        """Raises RequestRefused."""
        await self._ask(LoadAdapter(id=self._number("load"), name=name, path=path))
        self.adapters[name] = path

    async def unload_adapter(self, name: str) -> None:
        """Raises RequestRefused."""
        try:
            await self._ask(UnloadAdapter(id=self._number("unload"), name=name))
        except RequestRefused as refused:
            if refused.refusal.status == 404:
                self.adapters.pop(name, None)
            raise
        self.adapters.pop(name, None)

    async def export_kv(self, message: ExportKV) -> Exported:
        """Where another engine finds the KV of a prefilled request. Raises RequestRefused."""
        answer = await self._ask(message)
        assert isinstance(answer, Exported)
        return answer

    async def release_kv(self, request_id: str) -> None:
        """Nobody fetches it any more; unknown ids are no error."""
        self._write(ReleaseKV(id=request_id))

    async def _ask(self, message: Embed | LoadAdapter | UnloadAdapter | ExportKV) -> Answer:
        queue = self._send(message)
        try:
            answer = await queue.get()
        except asyncio.CancelledError:
            self._write(Abort(id=message.id))
            raise
        finally:
            del self._open[message.id]
        if isinstance(answer, Refused):
            raise RequestRefused(answer)
        return answer

    def _send(self, message: Question) -> asyncio.Queue[Answer]:
        queue: asyncio.Queue[Answer] = asyncio.Queue()
        if message.id in self._open:
            raise RequestRefused(Refused(id=message.id, message="this id is in use", status=400))
        self._open[message.id] = queue
        if not self._write(message):
            text = "the engine is not up; it is being started again, try in a moment"
            queue.put_nowait(Refused(id=message.id, message=text, status=503))
        return queue

    def _write(self, message: ToEngine) -> bool:
        """Whether there is an engine to write to. Never waits: requests are bounded by the API."""
        if self._writer is None or self.ready is None:
            return False
        self._writer.write(frame([message]))
        return True

    def _number(self, kind: str) -> str:
        return f"{kind}-{next(self._numbers)}"
