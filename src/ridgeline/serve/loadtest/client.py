"""Sends one request to an OpenAI-compatible server and stamps every chunk of its completion.

aiohttp, because it streams hundreds of requests a second on part of one core; what comes is parsed
by msgspec into the few fields we need.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import aiohttp
import msgspec

from ridgeline.batching.load.stamps import RequestStamps

Api = Literal["completions", "chat"]
KEEP_ALIVE_SECONDS = 3.0
"""Below the 5 s of uvicorn: a connection that the server is just closing would lose a request."""


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: msgspec.Raw | None = None

    @property
    def has_text(self) -> bool:
        return bool(self.content or self.reasoning_content or self.reasoning or self.tool_calls)


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw | None = None


_decode = msgspec.json.Decoder(_Chunk).decode


@dataclass(slots=True, kw_only=True)
class Client:
    """Open connections to one server."""

    session: aiohttp.ClientSession
    api: Api
    base_url: str
    """The server's address, which ends in /v1."""
    timeout_seconds: float
    begin: float = 0.0
    """`time.perf_counter()` at which the run's clock stood at 0."""

    def now(self) -> float:
        """Seconds of the run's clock."""
        return time.perf_counter() - self.begin

    async def send(self, body: bytes, exchange: RequestStamps) -> None:
        """Send one request and note its completion down; never raises but when cancelled."""
        try:
            async with asyncio.timeout(self.timeout_seconds):
                await self._send(body, exchange)
        except TimeoutError:
            exchange.error = "timed out"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            exchange.error = f"{type(error).__name__}: {error}"[:200]
        exchange.ended = self.now()

    async def _send(self, body: bytes, exchange: RequestStamps) -> None:
        place = "/completions" if self.api == "completions" else "/chat/completions"
        marks = SimpleNamespace(client=self, exchange=exchange)
        async with self.session.post(
            self.base_url + place, data=body, trace_request_ctx=marks
        ) as response:
            if response.status != 200:
                said = (await response.text())[:160]
                exchange.error = f"status {response.status}: {' '.join(said.split())}"
                return
            done = await self._read(response, exchange)
        if not exchange.error and not exchange.chunks:
            exchange.error = "no text in the answer"
        elif not exchange.error and not done:
            exchange.error = "the stream broke off"

    async def _read(self, response: aiohttp.ClientResponse, exchange: RequestStamps) -> bool:
        """Read the stream of events; True: it came to its end."""
        left = b""
        done = False
        async for data in response.content.iter_any():
            now = self.now()
            *lines, left = (left + data).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    done = _note(line[5:].strip(), now, exchange) or done
        return done


def _note(data: bytes, now: float, exchange: RequestStamps) -> bool:
    """One event; True where it says that the completion is complete."""
    if data == b"[DONE]":
        return True
    chunk = _decode(data)
    if chunk.error is not None:
        exchange.error = f"error in the stream: {bytes(chunk.error).decode(errors='replace')}"[:200]
    if chunk.usage is not None:
        exchange.prompt_tokens = chunk.usage.prompt_tokens
        exchange.output_tokens = chunk.usage.completion_tokens
        details = chunk.usage.prompt_tokens_details
        exchange.cached_tokens = (details.cached_tokens or 0) if details else 0
    for choice in chunk.choices:
        if choice.text or (choice.delta is not None and choice.delta.has_text):
            exchange.chunks.append(now)
        if choice.finish_reason:
            exchange.finish_reason = choice.finish_reason
    return bool(exchange.finish_reason)


@asynccontextmanager
async def open_client(
    base_url: str, api: Api, *, api_key: str | None, timeout_seconds: float
) -> AsyncIterator[Client]:
    """A client without a limit on connections: an open loop must never wait for one."""
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=timeout_seconds),
        headers=headers,
        trace_configs=[_marks()],
    )
    async with session:
        yield Client(session=session, api=api, base_url=base_url, timeout_seconds=timeout_seconds)


def _marks() -> aiohttp.TraceConfig:
    """Stamps when a connection was asked for, when it stood, when a request's head was written."""

    async def connecting(_: object, context: Any, __: object) -> None:
        if (marks := context.trace_request_ctx) is None:
            return
        marks.connecting = marks.client.now()

    async def connected(_: object, context: Any, __: object) -> None:
        if (marks := context.trace_request_ctx) is None:
            return
        marks.exchange.connect_seconds = marks.client.now() - marks.connecting

    async def sent(_: object, context: Any, __: object) -> None:
        if (marks := context.trace_request_ctx) is None:
            return
        marks.exchange.sent = marks.client.now()

    config = aiohttp.TraceConfig()
    config.on_connection_create_start.append(connecting)
    config.on_connection_create_end.append(connected)
    config.on_request_headers_sent.append(sent)
    return config


def request_body(
    api: Api, model: str, prompt: str | list[int], max_tokens: int, extra: Mapping[str, object]
) -> bytes:
    """A streaming request with usage in its stream, as JSON."""
    asked: dict[str, object] = {"model": model}
    if api == "completions":
        asked["prompt"] = prompt
    else:
        asked["messages"] = [{"role": "user", "content": prompt}]
    asked |= {
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **extra,
    }
    return msgspec.json.encode(asked)
