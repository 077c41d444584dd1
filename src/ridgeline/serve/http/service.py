"""What all routes share: the engine, the tokenizer, the meters, and whether we are draining."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.requests import Request

from ridgeline.records.served_models import ModelPipeline
from ridgeline.serve.cluster.combined import FleetReport, RemoteReport
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.http.access_log import RequestRecord
from ridgeline.serve.http.connection import ARRIVAL_SECONDS
from ridgeline.serve.http.metrics import Meters
from ridgeline.serve.http.protocol.errors import RETRY_AFTER_SECONDS, ApiError
from ridgeline.serve.http.protocol.fields import SamplingFields
from ridgeline.serve.http.reply import Deltas, error_of, unless_gone
from ridgeline.serve.http.settings import ServerSettings
from ridgeline.serve.http.text import TextTokens, Tokenizer, load_images
from ridgeline.serve.messages import Ready, Submit
from ridgeline.serve.process.client import EngineLink, RequestRefused

T = TypeVar("T")
Body = TypeVar("Body", bound=SamplingFields)

PLACEHOLDERS = frozenset({"dummy", "tgi"})
"""What Hugging Face's clients call the model of an address, whichever it is."""


@dataclass
class Service:
    """What all requests of one server share."""

    engine: EngineLink
    text: TextTokens
    settings: ServerSettings
    meters: Meters
    fleet: Callable[[], FleetReport] | None = None
    """What an autoscaler says of its replicas; None: there is none."""
    hosts: Callable[[], tuple[RemoteReport, ...]] | None = None
    """What is said of engines on other hosts; None: they are all here."""
    beside: tuple[Service, ...] = ()
    """The services of further models behind the same front, of which this is the first."""
    pipelines: tuple[ModelPipeline, ...] = ()
    """Names for several of them that answer one after another."""
    created: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False
    open: set[Deltas] = field(default_factory=set)
    """Requests whose completions are being read."""
    num_requests: int = 0
    """HTTP requests under way, whatever they ask."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while there are none."""
    arriving_bytes: int = 0
    """Bytes of bodies that are not whole yet."""
    _arriving: set[asyncio.Timeout] = field(default_factory=set)
    """When each body that is not whole yet is given up."""
    _asking: set[asyncio.Timeout] = field(default_factory=set)
    """When each command under way is given up."""

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def all(self) -> tuple[Service, ...]:
        """The services of all models behind this front."""
        return (self, *self.beside)

    def arriving(self) -> AbstractAsyncContextManager[None]:
        """Wait for a body. Raises TimeoutError when it takes too long, or when we drain."""
        return _limited(self._arriving, ARRIVAL_SECONDS)

    def drain(self) -> None:
        """Take nothing new, nor what has not arrived yet."""
        for service in self.all:
            service.draining = True
            _end_now(service._arriving)

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count an HTTP request while it is under way."""
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
        """What the engine said when it came up. Raises ApiError, 503, while it is not."""
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
        if self.name_of(model) == self.settings.model_name:
            return ""
        if model in self.adapters:
            return model
        if self.engine.ready is None and model in self.engine.adapters:
            raise _not_up()
        known = ", ".join([*self.settings.names, *self.adapters])
        text = f"no model {model[:100]!r} here; known: {known}"
        raise ApiError(404, text, param="model", code="model_not_found")

    def name_of(self, model: str) -> str:
        """What replies call the model that was asked for; without a name, it is the model."""
        placeholder = model.lower() in PLACEHOLDERS and model not in self.adapters
        if not model or placeholder or model in self.settings.other_names:
            return self.settings.model_name
        return model

    def open_deltas(self, submits: Sequence[Submit]) -> Deltas:
        """Send prompts to the engine; to be ended by `close_deltas`."""
        for submit in submits:
            self.meters.note_submit(submit)
        deltas = Deltas(self.engine, submits, self.settings.request_timeout_seconds)
        self.open.add(deltas)
        return deltas

    def close_deltas(self, deltas: Deltas) -> None:
        """Withdraw what is unfinished of them."""
        deltas.close()
        self.open.discard(deltas)

    def end_all(self) -> None:
        """Every open request gets an error, whole or as the last event of its stream."""
        for service in self.all:
            for deltas in service.open:
                deltas.end(shutting_down())
            _end_now(service._asking)

    async def ask(self, request: Request, command: Awaitable[T]) -> T:
        """A command to the engine other than a prompt. Raises ApiError."""
        self.ready  # noqa: B018  raises while there is no engine
        try:
            async with _limited(self._asking, self.settings.request_timeout_seconds):
                return await unless_gone(request, command)
        except RequestRefused as refusal:
            raise error_of(refusal.refusal) from None
        except TimeoutError:
            if self.draining:
                raise shutting_down() from None
            seconds = self.settings.request_timeout_seconds
            text = f"not answered within {seconds:g} s (--request-timeout)"
            raise ApiError(504, text) from None

    def with_defaults(self, body: Body, record: RequestRecord) -> Body:
        """The request with its model's name, and its makers' word on fields left out."""
        record.model = self.name_of(body.model)
        record.defaults = body.with_defaults(self.settings.defaults)
        return body.model_copy(update={**record.defaults, "model": record.model})

    def cut(self, prompt: tuple[int, ...], keep: int | None, wanted: int | None) -> tuple[int, ...]:
        """The last tokens of a prompt: `keep` of them, or with -1 as many as leave room."""
        if keep is None:
            return prompt
        if keep < 0:
            keep = self.ready.max_length - max(1, wanted or 1)
        return prompt[max(0, len(prompt) - keep) :]

    def room(self, prompt: tuple[int, ...], wanted: int | None, param: str) -> int:
        """New tokens that a prompt may have: as many as wanted, or as many as fit.

        Raises:
            ApiError: 400, prompt and completion are longer than the context.
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


async def text_of(
    config: EngineConfig, settings: ServerSettings, tokenizer: Tokenizer, ready: Ready
) -> TextTokens:
    """How an engine's service reads and writes text and images.

    Raises:
        InputError: The model takes images, and the processor beside it cannot be read.
    """
    return TextTokens(
        tokenizer,
        ready.vocab,
        chat_template=settings.chat_template,
        reasoning_parser=settings.reasoning_parser,
        tool_call_parser=settings.tool_call_parser,
        images=await load_images(config, ready, settings.allowed_media_domains),
    )


def shutting_down() -> ApiError:
    """What everyone is told who comes too late, or stays too long."""
    text = "the server is shutting down; ask another one"
    return ApiError(503, text, retry_after_seconds=RETRY_AFTER_SECONDS)


def _not_up() -> ApiError:
    text = "the engine is not up; it is being started again, try in a moment"
    return ApiError(503, text, retry_after_seconds=RETRY_AFTER_SECONDS)


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
