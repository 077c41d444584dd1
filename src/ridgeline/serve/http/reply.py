"""From prompts to a response, whole or streamed: what the engine sends, and what is sent of it.

Until the engine has given its first sign a refusal is a status; after that it is the stream's last
event. However it ends (all is sent, refused, timed out, the client gone, the server draining), what
is unfinished is withdrawn, and the engine hears of it in the same turn of the event loop.

Server-sent events are `data: {…}` lines, ended by `data: [DONE]`, or by names, or plain lines
(`StreamShape`).
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ridgeline.serve.http.access_log import RequestRecord, own_path
from ridgeline.serve.http.protocol.errors import RETRY_AFTER_SECONDS, ApiError
from ridgeline.serve.http.protocol.google import model_of_path
from ridgeline.serve.http.protocol.token_usage import TokenUsage
from ridgeline.serve.messages import Delta, Refused, Submit
from ridgeline.serve.process.client import EngineLink

if TYPE_CHECKING:
    from ridgeline.serve.http.service import Service

DONE = b"data: [DONE]\n\n"
CHOSEN = "ridgeline.service"
"""Where a request's scope says which of several models it is for."""
T = TypeVar("T")


class ClientGone(Exception):
    """The client has closed the connection; there is nobody to reply to."""


class Deltas:
    """What the engine sends for one HTTP request, all prompts in one queue, with a time limit."""

    def __init__(
        self, engine: EngineLink, submits: Sequence[Submit], timeout_seconds: float | None
    ) -> None:
        self._queue: asyncio.Queue[Delta | Refused | ApiError] = asyncio.Queue()
        self._first: Delta | None = None
        self._positions = {submit.id: position for position, submit in enumerate(submits)}
        self._running = sum(submit.n for submit in submits)
        self._withdraw = [engine.send(submit, self._queue.put_nowait) for submit in submits]
        self._timer = None
        if timeout_seconds is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(timeout_seconds, self._end_late, timeout_seconds)

    def end(self, error: ApiError) -> None:
        """Let the reader fail with this; used when the server drains."""
        self._queue.put_nowait(error)

    async def first(self) -> None:
        """Wait for the first sign, so that a refusal can still become a status.

        Raises:
            ApiError: the engine refuses.
        """
        self._first = _delta(await self._queue.get())

    async def read(self, record: RequestRecord) -> AsyncIterator[tuple[int, Delta]]:
        """Prompts' positions and Deltas, until every completion has its last. Raises ApiError."""
        while self._running:
            delta = self._first or _delta(await self._queue.get())
            self._first = None
            record.note(delta)
            if delta.finish_reason is not None:
                if delta.finish_reason == "abort":  # not by us: we do not listen to what we abort
                    text = "the engine gave this request up; try again"
                    raise ApiError(503, text, retry_after_seconds=RETRY_AFTER_SECONDS)
                self._running -= 1
            yield self._positions[delta.id], delta

    def close(self) -> None:
        """Withdraw what is unfinished; may be called twice."""
        if self._timer is not None:
            self._timer.cancel()
        for withdraw in self._withdraw:
            withdraw()

    def _end_late(self, seconds: float) -> None:
        self.end(ApiError(504, f"not answered within {seconds:g} s (--request-timeout)"))


def _delta(message: Delta | Refused | ApiError) -> Delta:
    if isinstance(message, Delta):
        return message
    raise error_of(message) if isinstance(message, Refused) else message


def error_of(refused: Refused) -> ApiError:
    """The engine's refusal as an error of the API."""
    retry = RETRY_AFTER_SECONDS if refused.status in (429, 503) else None
    text, param = refused.message, refused.parameter
    return ApiError(refused.status, text, param=param, retry_after_seconds=retry)


class ReplyWriter(Protocol):
    """Gives completions the shape of their endpoint."""

    def add(self, position: int, delta: Delta) -> None:
        """Take a delta of the prompt at `position`, for `whole`."""

    def whole(self, usage: TokenUsage) -> Any:
        """The document with all completions."""

    def opening(self) -> Iterable[Any]:
        """The chunks before the first delta."""

    def chunks(self, position: int, delta: Delta) -> Iterable[Any]:
        """What a stream shows of a delta."""

    def closing(self, usage: TokenUsage) -> Iterable[Any]:
        """The chunks behind the last delta."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamShape:
    """How a stream's events are written; as it stands, OpenAI's."""

    named: bool = False
    """Each event says its document's `type` in a line of its own, and the last one is the end."""
    lines: bool = False
    """Each event is a line with nothing but its document, and the last one is the end."""
    marked: bool = True
    """Where events have no names, a mark is the end; without it, the last one is, too."""
    failure: Callable[[ApiError], Any] = attrgetter("body")
    """The document of the event that an error becomes."""

    def event(self, content: Any) -> bytes:
        """One event with a JSON document."""
        if self.lines:
            return msgspec.json.encode(content) + b"\n"
        name = b"event: %s\n" % content["type"].encode() if self.named else b""
        return name + b"data: " + msgspec.json.encode(content) + b"\n\n"

    @property
    def end(self) -> bytes:
        """What comes behind the last event."""
        return b"" if self.named or self.lines or not self.marked else DONE

    @property
    def media_type(self) -> str:
        """What a stream of this shape is called."""
        return "application/x-ndjson" if self.lines else "text/event-stream"


CHUNKS = StreamShape()
"""The shape of OpenAI's completions."""


async def respond(
    request: Request,
    submits: Sequence[Submit],
    writer: ReplyWriter,
    *,
    stream: bool | None,
    shape: StreamShape = CHUNKS,
) -> Response:
    """Ask the engine and reply. Raises ApiError where it refuses at once."""
    service, record = service_of(request), record_of(request)
    deltas = service.open_deltas(submits)
    streaming = False
    try:
        if not stream:
            return json_response(await unless_gone(request, _whole(deltas, writer, record)))
        await unless_gone(request, deltas.first())
        streaming = True
    finally:
        if not streaming:
            service.close_deltas(deltas)

    def note_failure(error: ApiError) -> None:
        record.error = str(error)

    events = _events(deltas, writer, record, shape.event)
    return EventStream(events, lambda: service.close_deltas(deltas), note_failure, shape)


async def _whole(deltas: Deltas, writer: ReplyWriter, record: RequestRecord) -> Any:
    async for position, delta in deltas.read(record):
        writer.add(position, delta)
    return writer.whole(record.usage)


async def _events(
    deltas: Deltas,
    writer: ReplyWriter,
    record: RequestRecord,
    event: Callable[[Any], bytes],
) -> AsyncIterator[bytes]:
    for chunk in writer.opening():
        yield event(chunk)
    async for position, delta in deltas.read(record):
        for chunk in writer.chunks(position, delta):
            yield event(chunk)
    for chunk in writer.closing(record.usage):
        yield event(chunk)


class EventStream(Response):
    """Sends events as they come; an error becomes the last event.

    `close` is called once, whatever ends the stream: its end, an error, or a client that has gone.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        close: Callable[[], None],
        failed: Callable[[ApiError], None],
        shape: StreamShape,
    ) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(headers=headers, media_type=shape.media_type)
        del self.headers["content-length"]
        self._events = events
        self._close = close
        self._failed = failed
        self._shape = shape

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, as ASGI has it."""
        sending = asyncio.create_task(self._send(send))
        gone = asyncio.create_task(_closed(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            self._close()
            for task in (sending, gone):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await task

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for body in self._events:
                await send({"type": "http.response.body", "body": body, "more_body": True})
        except ApiError as error:
            await self._end(send, error)
        except Exception as error:  # a bug: the client hears of it, the log shows it
            await self._end(send, ApiError(500, f"internal error: {type(error).__name__}"))
            raise
        else:
            await send({"type": "http.response.body", "body": self._shape.end, "more_body": False})

    async def _end(self, send: Send, error: ApiError) -> None:
        self._failed(error)
        body = self._shape.event(self._shape.failure(error)) + self._shape.end
        await send({"type": "http.response.body", "body": body, "more_body": False})


def new_id(kind: str) -> str:
    """A new id in OpenAI's shape: `chatcmpl-…`."""
    return f"{kind}-{uuid.uuid4().hex}"


def record_of(request: Request) -> RequestRecord:
    """What is remembered of this request; `access_log.py` made it."""
    record: RequestRecord = request.scope["ridgeline.record"]
    return record


def service_of(request: Request) -> Service:
    """The service of the server that got this request, or of the model that it is for."""
    service: Service = request.scope.get(CHOSEN) or request.app.state.service
    return service


def json_response(content: object, *, status: int = 200) -> Response:
    """A response with a JSON document."""
    return Response(msgspec.json.encode(content), status_code=status, media_type="application/json")


def error_response(error: ApiError, scope: Scope) -> Response:
    """A response with an error in the shape of the API that was asked."""
    path = own_path(scope)
    body: Any = error.body
    if path.startswith("/v1/messages") or path == "/v1/complete" or path.endswith("Predict"):
        body = error.message_body
    elif path.startswith("/api/"):
        body = {"error": str(error)}
    elif path.startswith("/v1beta/") or model_of_path(path) is not None:
        body = error.google_body
    response = json_response(body, status=error.status)
    response.headers.update(error.headers)
    return response


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The work's result; where the client closes the connection, the work is cancelled.

    Raises:
        ClientGone: it did.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_closed(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        gone.cancel()
        task.cancel()


async def _closed(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
