"""The API's side of an engine: requests go out, what they bring comes back (asyncio).

A client outlives the engine processes that the supervisor gives it. While there is none, and when
one ends, every request gets a `RequestRefused` with status 503: nobody waits for ever.

`EngineLink` is what the API needs of an engine, or of several behind a router.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Callable, Mapping
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
    ForgetPrefixes,
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

Reply = Delta | Embedded | Done | Exported | Refused
Question = Submit | ImportKV | Embed | LoadAdapter | UnloadAdapter | ForgetPrefixes | ExportKV
"""A message that is replied to."""


class RequestRefused(Exception):
    """The engine does not serve this request, or no longer; `refusal` says why."""

    def __init__(self, refusal: Refused) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


Deliver = Callable[[Delta | Refused], None]
"""What is given each message of a request, in the event loop.

The last one is a `Refused`, or the last Delta of the last of its completions.
"""


class EngineLink(Protocol):
    """What the API asks of an engine; `EngineClient` of one, `cluster.router.Router` of several."""

    @property
    def ready(self) -> Ready | None:
        """What the engine said when it came up; None while there is none."""

    @property
    def stats(self) -> Stats | None:
        """What the last heartbeat said."""

    @property
    def heartbeat_age_seconds(self) -> float:
        """Seconds since the last heartbeat came."""

    def send(self, submit: Submit, deliver: Deliver) -> Callable[[], None]:
        """Send a request, whose messages `deliver` is given, the first after this has returned.

        Returns:
            Withdraws what is unfinished; it may be called at any time and more than once.
        """

    def abort(self, request_id: str) -> None:
        """End a request that nobody waits for any more; unknown ids are no error."""

    async def embed(
        self, prompts: tuple[tuple[int, ...], ...], adapter: str = ""
    ) -> tuple[tuple[float, ...], ...]:
        """One vector per prompt, by the model or an adapter of it. Raises RequestRefused."""

    @property
    def adapters(self) -> dict[str, str]:
        """Paths of the adapters, by name, that it has, or is to have when it has started again."""

    async def load_adapter(self, name: str, path: str) -> None:
        """Load an adapter from a directory. Raises RequestRefused."""

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter by name. Raises RequestRefused."""

    async def forget_prefixes(self) -> None:
        """Let no request that comes find what is cached now. Raises RequestRefused."""


class EngineClient:
    """One engine; an `EngineLink`, and a `cluster.disaggregated.KvLink` where it hands KV over."""

    def __init__(self, adapters: Mapping[str, str] | None = None) -> None:
        """Begin without an engine.

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
        self._open: dict[str, Callable[[Reply], None]] = {}
        self._numbers = itertools.count()

    @property
    def heartbeat_age_seconds(self) -> float:
        """Seconds since the last heartbeat came, or since there is no engine."""
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
            text = self._last_words()
            for request_id, take in list(self._open.items()):
                take(Refused(id=request_id, message=text, status=503))
            writer.close()

    def _last_words(self) -> str:
        """What the requests are told that were open when the engine ended."""
        text = "the engine ended while it worked on this request; try again"
        return text if self.failed is None else f"{text} ({self.failed.message})"

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
                take = self._open.get(message.id)
                if take is not None:  # else it was aborted a moment ago
                    take(message)

    def send(self, submit: Submit | ImportKV, deliver: Deliver) -> Callable[[], None]:
        """Send a request, whose messages `deliver` is given, the first after this has returned.

        Returns:
            Withdraws what is unfinished; it may be called at any time and more than once.
        """
        request_id, running = submit.id, set(range(submit.n))

        def take(message: Reply) -> None:
            assert isinstance(message, (Delta, Refused))
            if isinstance(message, Refused):
                running.clear()
            elif message.finish_reason is not None:
                running.discard(message.index)
            if not running:
                del self._open[request_id]
            deliver(message)

        def withdraw() -> None:
            if running and self._open.get(request_id) is take:
                del self._open[request_id]
                self._write(Abort(id=request_id))

        try:
            self._send(submit, take)
        except RequestRefused as refused:
            asyncio.get_running_loop().call_soon(deliver, refused.refusal)
        return withdraw

    def abort(self, request_id: str) -> None:
        """End a request that nobody waits for any more; unknown ids are no error."""
        self._write(Abort(id=request_id))

    async def embed(
        self, prompts: tuple[tuple[int, ...], ...], adapter: str = ""
    ) -> tuple[tuple[float, ...], ...]:
        """One vector per prompt, by the model or an adapter of it. Raises RequestRefused."""
        reply = await self._ask(Embed(id=self._number("embed"), prompts=prompts, adapter=adapter))
        assert isinstance(reply, Embedded)
        return reply.vectors

    async def load_adapter(self, name: str, path: str) -> None:
        """Load an adapter from a directory. Raises RequestRefused."""
        await self._ask(LoadAdapter(id=self._number("load"), name=name, path=path))
        self.adapters[name] = path

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter by name. Raises RequestRefused."""
        try:
            await self._ask(UnloadAdapter(id=self._number("unload"), name=name))
        except RequestRefused as refused:
            if refused.refusal.status == 404:
                self.adapters.pop(name, None)
            raise
        self.adapters.pop(name, None)

    async def forget_prefixes(self) -> None:
        """Let no request that comes find what is cached now. Raises RequestRefused."""
        await self._ask(ForgetPrefixes(id=self._number("forget")))

    async def export_kv(self, message: ExportKV) -> Exported:
        """Where another engine finds the KV of a prefilled request. Raises RequestRefused."""
        reply = await self._ask(message)
        assert isinstance(reply, Exported)
        return reply

    def release_kv(self, request_id: str) -> None:
        """Let go of KV that nobody fetches any more; unknown ids are no error."""
        self._write(ReleaseKV(id=request_id))

    async def _ask(
        self, message: Embed | LoadAdapter | UnloadAdapter | ForgetPrefixes | ExportKV
    ) -> Reply:
        replied: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def take(reply: Reply) -> None:
            if not replied.done():
                replied.set_result(reply)

        self._send(message, take)
        try:
            reply = await replied
        except asyncio.CancelledError:
            self._write(Abort(id=message.id))
            raise
        finally:
            del self._open[message.id]
        if isinstance(reply, Refused):
            raise RequestRefused(reply)
        return reply

    def _send(self, message: Question, take: Callable[[Reply], None]) -> None:
        """Send what is replied to. Raises RequestRefused where its id is in use."""
        if message.id in self._open:
            raise RequestRefused(Refused(id=message.id, message="this id is in use", status=400))
        self._open[message.id] = take
        if not self._write(message):
            text = "the engine is not up; it is being started again, try in a moment"
            refused = Refused(id=message.id, message=text, status=503)
            asyncio.get_running_loop().call_soon(self._take, refused)

    def _write(self, message: ToEngine) -> bool:
        """Whether there is an engine to write to. Never waits: requests are bounded by the API."""
        if self._writer is None or self.ready is None:
            return False
        self._writer.write(frame([message]))
        return True

    def _number(self, kind: str) -> str:
        return f"{kind}-{next(self._numbers)}"


async def stream(link: EngineLink, submit: Submit) -> AsyncGenerator[Delta, None]:
    """Deltas of a request as they come, through a queue; closing early withdraws it.

    Raises:
        RequestRefused: The engine does not serve it, or no longer.
    """
    queue: asyncio.Queue[Delta | Refused] = asyncio.Queue()
    withdraw = link.send(submit, queue.put_nowait)
    running = submit.n
    try:
        while running:
            message = await queue.get()
            if isinstance(message, Refused):
                raise RequestRefused(message)
            running -= message.finish_reason is not None
            yield message
    finally:
        withdraw()
