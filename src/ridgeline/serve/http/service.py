"""What all routes share: the engine, the tokenizer, the meters, and whether we are draining."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ridgeline.serve.cluster.fleet import FleetReport
from ridgeline.serve.http.answers import RETRY_AFTER_SECONDS, Answers, error_of
from ridgeline.serve.http.connection import ARRIVAL_SECONDS
from ridgeline.serve.http.metrics import Meters
from ridgeline.serve.http.protocol.errors import ApiError
from ridgeline.serve.http.record import Record
from ridgeline.serve.http.text import TextTokens
from ridgeline.serve.messages import Ready, Submit
from ridgeline.serve.process.client import EngineLink, RequestRefused

T = TypeVar("T")


class ClientGone(Exception):
    """The client has closed the connection; there is nobody to answer."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Of the server; field for field flags of `ridgeline serve`."""

    model_name: str
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    """Empty: everyone may ask."""
    max_body_bytes: int = 8 * 2**20
    request_timeout_seconds: float | None = None
    shutdown_timeout_seconds: float = 30.0
    """For open requests, after SIGTERM."""


@dataclass
class Service:
    """One per server."""

    engine: EngineLink
    text: TextTokens
    settings: Settings
    meters: Meters
    fleet: Callable[[], FleetReport] | None = None
    """What an autoscaler says of its replicas; None: there is none."""
    created: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False
    open: set[Answers] = field(default_factory=set)
    """Requests that are being answered."""
    num_requests: int = 0
    """HTTP requests under way, whatever they ask."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while there are none."""
    arriving_bytes: int = 0
    """Of bodies that are not whole yet."""
    _arriving: set[asyncio.Timeout] = field(default_factory=set)
    """Of the same bodies: when each is given up."""
    _asking: set[asyncio.Timeout] = field(default_factory=set)
    """Of commands: the same."""

    def __post_init__(self) -> None:
        self.idle.set()

    def arriving(self) -> AbstractAsyncContextManager[None]:
        """A body is arriving. Raises TimeoutError when it takes too long, or when we drain."""
        return _limited(self._arriving, ARRIVAL_SECONDS)

    def drain(self) -> None:
        """Take nothing new, nor what has not arrived yet."""
        self.draining = True
        _end_now(self._arriving)

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """An HTTP request is under way."""
        self.num_requests += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.num_requests -= 1
            if not self.num_requests:
                self.idle.set()

    @property
    def ready(self) -> Ready:
        """Raises ApiError, 503, while the engine is not up."""
        ready = self.engine.ready
        if ready is None:
            raise _not_up()
        return ready

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names that the engine has loaded now."""
        stats, ready = self.engine.stats, self.engine.ready
        if stats is not None:
            return stats.adapters
        return ready.adapters if ready is not None else ()

    def adapter(self, model: str) -> str:
        """The adapter that a request names as its model: "" for the model itself.

        Raises:
            ApiError: 404, no such model here; 503, nobody can say before the engine is up.
        """
        if model == self.settings.model_name:
            return ""
        if model in self.adapters:
            return model
        if self.engine.ready is None and model in self.engine.adapters:
            raise _not_up()
        known = ", ".join([self.settings.model_name, *self.adapters])
        text = f"no model {model[:100]!r} here; known: {known}"
        raise ApiError(404, text, param="model", code="model_not_found")

    def answers(self, submits: Sequence[Submit]) -> Answers:
        """Send prompts to the engine; to be ended by `close`."""
        for submit in submits:
            self.meters.submitted(submit)
        answers = Answers(self.engine, submits, self.settings.request_timeout_seconds)
        self.open.add(answers)
        return answers

    def close(self, answers: Answers) -> None:
        """Abort what is unfinished of them."""
        answers.close()
        self.open.discard(answers)

    def end_all(self) -> None:
        """Every open request gets an error, whole or as the last event of its stream."""
        for answers in self.open:
            answers.end(shutting_down())
        _end_now(self._asking)

    async def ask(self, request: Request, command: Awaitable[T]) -> T:
        """A command to the engine other than a prompt. Raises ApiError."""
        self.ready  # noqa: B018  raises while there is no engine
        try:
            async with _limited(self._asking, self.settings.request_timeout_seconds):
                return await unless_gone(request, command)
        except RequestRefused as refusal:
            raise error_of(refusal) from None
        except TimeoutError:
            if self.draining:
                raise shutting_down() from None
            seconds = self.settings.request_timeout_seconds
            text = f"not answered within {seconds:g} s (--request-timeout)"
            raise ApiError(504, text) from None

    def room(self, prompt: tuple[int, ...], wanted: int | None, param: str) -> int:
        """New tokens that a prompt may have: as many as wanted, or as many as fit.

        Raises:
            ApiError: 400, prompt and answer are longer than the context.
        """
        longest = self.ready.max_length
        left = longest - len(prompt)
        if left < max(1, wanted or 1):
            asked = f" and {wanted} new ones" if wanted is not None else ""
            text = (
                f"this model's context is {longest} tokens; the prompt has {len(prompt)}{asked}:"
                " shorten the prompt or ask for fewer"
            )
            raise ApiError(400, text, param=param, code="context_length_exceeded")
        return left if wanted is None else wanted


def shutting_down() -> ApiError:
    """What everyone is told who comes too late, or stays too long."""
    text = "the server is shutting down; ask another one"
    return ApiError(503, text, retry_after_seconds=RETRY_AFTER_SECONDS)


def new_id(kind: str) -> str:
    """As OpenAI's: `chatcmpl-…`."""
    return f"{kind}-{uuid.uuid4().hex}"


def record_of(request: Request) -> Record:
    """Of this request; `journal.py` made it."""
    record: Record = request.scope["ridgeline.record"]
    return record


def service_of(request: Request) -> Service:
    """Of this server."""
    service: Service = request.app.state.service
    return service


def json_response(content: object, *, status: int = 200) -> Response:
    """A JSON document."""
    return Response(msgspec.json.encode(content), status_code=status, media_type="application/json")


def error_response(error: ApiError) -> Response:
    """An error in OpenAI's shape."""
    response = json_response(error.body, status=error.status)
    response.headers.update(error.headers)
    return response


def _not_up() -> ApiError:
    text = "the engine is not up; it is being started again, try in a moment"
    return ApiError(503, text, retry_after_seconds=RETRY_AFTER_SECONDS)


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The work's result; where the client closes the connection, the work is cancelled.

    Raises:
        ClientGone: it did.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_closed(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        gone.cancel()
        task.cancel()


@contextlib.asynccontextmanager
async def _limited(among: set[asyncio.Timeout], seconds: float | None) -> AsyncIterator[None]:
    """A time limit that `_end_now` can bring forward."""
    async with asyncio.timeout(seconds) as limit:
        among.add(limit)
        try:
            yield
        finally:
            among.discard(limit)


def _end_now(limits: set[asyncio.Timeout]) -> None:
    now = asyncio.get_running_loop().time()
    for limit in limits:
        limit.reschedule(now)


async def _closed(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
