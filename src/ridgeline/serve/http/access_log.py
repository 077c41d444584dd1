"""The server's access log: for every request its id, its span, and one JSON line at its end.

The id comes in as `X-Request-Id` or is made here, and goes out with the response and into the log.

OpenTelemetry gets one span per request, in the caller's trace, where opentelemetry-api is
installed. Without an SDK set up (`opentelemetry-instrument ridgeline serve …`, or its environment
variables) the API's spans cost next to nothing; without the package there are none.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeline.serve.http.protocol.exact import LetGo
from ridgeline.serve.http.protocol.token_usage import PromptDetails, TokenUsage
from ridgeline.serve.messages import Delta

try:
    from opentelemetry import propagate, trace
except ImportError:
    trace = None

if TYPE_CHECKING:
    from ridgeline.serve.http.service import Service

GIVEN_ID = re.compile(rb"[\x21-\x7e]{1,128}")
QUIET_PATHS = frozenset({
    *("/health", "/ready", "/metrics", "/ping", "/load"),
    *("/health_generate", "/v2/health/live", "/v2/health/ready"),
})  # fmt: skip
"""Asked every few seconds: logged only when they fail."""
CLIENT_GONE = 499
"""nginx's status for a client that has closed the connection."""

log = logging.getLogger("ridgeline.serve")


@dataclass(slots=True)
class RequestRecord:
    """Filled as the request goes on."""

    request_id: str
    began: float = field(default_factory=time.monotonic)
    """When its first byte was seen, on this process's clock."""
    model: str = ""
    user: str | None = None
    metadata: dict[str, str] | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    num_preemptions: int = 0
    wasted_tokens: int = 0
    finish_reasons: list[str] = field(default_factory=list)
    without_effect: list[str] = field(default_factory=list)
    """Fields of the request that nothing follows from."""
    let_go: LetGo = field(default_factory=LetGo)
    """Fields of the request that nobody here reads."""
    defaults: dict[str, float | int] = field(default_factory=dict)
    """Parameters of sampling that came from the model's generation_config.json."""
    error: str | None = None

    def note(self, delta: Delta) -> None:
        """Count one delta's tokens; the last one of a completion says the rest."""
        self.output_tokens += len(delta.tokens)
        if delta.finish_reason is None:
            return
        self.finish_reasons.append(delta.finish_reason)
        self.num_preemptions += delta.num_preemptions
        self.wasted_tokens += delta.wasted_tokens
        if delta.index == 0:  # the completions to one prompt share it
            self.prompt_tokens += delta.prompt_tokens
            self.cached_tokens += delta.cached_tokens

    @property
    def usage(self) -> TokenUsage:
        """The token counts as the API tells them."""
        return TokenUsage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.output_tokens,
            total_tokens=self.prompt_tokens + self.output_tokens,
            prompt_tokens_details=PromptDetails(cached_tokens=self.cached_tokens),
        )

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What the response's head says of the request."""
        found = [(b"x-request-id", self.request_id.encode())]
        if without := self._unheeded():
            found.append((b"x-without-effect", ", ".join(without).encode()))
        if self.defaults:
            said = ", ".join(f"{name}={value:g}" for name, value in self.defaults.items())
            found.append((b"x-sampling-defaults", said.encode()))
        return found

    def _unheeded(self) -> list[str]:
        """All that nothing follows from, once each."""
        return list(dict.fromkeys((*self.without_effect, *self.let_go.names)))

    def fields(self) -> dict[str, object]:
        """What the log line says: whatever is known and not zero."""
        kept = (name for name in self.__slots__ if name not in ("began", "let_go"))
        found = {name: getattr(self, name) for name in kept} | {"without_effect": self._unheeded()}
        return {name: value for name, value in found.items() if value}


@contextmanager
def span(scope: Scope, record: RequestRecord) -> Iterator[Callable[[int], None]]:
    """A span around a request; call what it gives with the response's status."""
    if trace is None:
        yield lambda status: None  # noqa: ARG005  there is nothing to mark
        return
    headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
    with trace.get_tracer("ridgeline.serve").start_as_current_span(
        f"{scope['method']} {scope['path']}",
        context=propagate.extract(headers),
        kind=trace.SpanKind.SERVER,
    ) as current:

        def mark(status: int) -> None:
            if not current.is_recording():
                return
            current.set_attribute("http.response.status_code", status)
            current.set_attribute("http.request.header.x-request-id", record.request_id)
            current.set_attribute("gen_ai.request.model", record.model)
            current.set_attribute("gen_ai.usage.input_tokens", record.prompt_tokens)
            current.set_attribute("gen_ai.usage.output_tokens", record.output_tokens)

        yield mark


class AccessLog:
    """ASGI middleware; the outermost, so that it sees how everything ends."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, as ASGI has it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(request_id=_request_id(scope))
        scope["ridgeline.record"] = record
        status, whole = CLIENT_GONE, False

        async def tell(message: Message) -> None:
            nonlocal status, whole
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", []), *record.headers()]}
            elif message["type"] == "http.response.body":
                whole = not message.get("more_body", False)
            await send(message)

        try:
            with self._service.counting(), span(scope, record) as mark:
                await self._app(scope, receive, tell)
                mark(status)
        except Exception as error:
            status, record.error = 500, f"{type(error).__name__}: {error}"
            raise
        finally:
            self._write(scope, record, status if whole or status >= 500 else CLIENT_GONE)

    def _write(self, scope: Scope, record: RequestRecord, status: int) -> None:
        if own_path(scope) in QUIET_PATHS and status < 400:
            return
        fields: dict[str, Any] = {
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "seconds": round(time.monotonic() - record.began, 6),
            **record.fields(),
        }
        level = logging.ERROR if status >= 500 else logging.INFO
        log.log(level, "request", extra={"fields": fields})


def own_path(scope: Scope) -> str:
    """The path without the prefix that a proxy has taken off, and the server put back."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and GIVEN_ID.fullmatch(value):
            given: str = value.decode()
            return given
    return uuid.uuid4().hex
