"""From prompts to a response: whole or streamed, the same for completions and chats.

Until the engine has given its first sign a refusal is a status; after that it is the stream's last
event. However it ends (answered, refused, timed out, the client gone), what is unfinished is
aborted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from ridgeline.serve.http.answers import Answers
from ridgeline.serve.http.protocol.errors import ApiError
from ridgeline.serve.http.protocol.usage import Usage
from ridgeline.serve.http.record import Record
from ridgeline.serve.http.service import json_response, record_of, service_of, unless_gone
from ridgeline.serve.http.sse import EventStream, event
from ridgeline.serve.messages import Delta, Submit


class Writer(Protocol):
    """Gives answers their shape."""

    def add(self, position: int, delta: Delta) -> None:
        """For `whole`: take a delta of the prompt at `position`."""

    def whole(self, usage: Usage) -> Any:
        """The document."""

    def opening(self) -> Iterable[Any]:
        """Chunks before the first delta."""

    def chunks(self, position: int, delta: Delta) -> Iterable[Any]:
        """What a stream shows of a delta."""

    def closing(self, usage: Usage) -> Iterable[Any]:
        """Chunks behind the last delta."""


async def respond(
    request: Request, submits: Sequence[Submit], writer: Writer, *, stream: bool | None
) -> Response:
    """Ask the engine and answer. Raises ApiError where it refuses at once."""
    service, record = service_of(request), record_of(request)
    answers = service.answers(submits)
    streaming = False
    try:
        if not stream:
            return json_response(await unless_gone(request, _whole(answers, writer, record)))
        await unless_gone(request, answers.first())
        streaming = True
    finally:
        if not streaming:
            service.close(answers)

    def failed(error: ApiError) -> None:
        record.error = str(error)

    events = _events(answers, writer, record)
    return EventStream(events, lambda: service.close(answers), failed)


async def _whole(answers: Answers, writer: Writer, record: Record) -> Any:
    async for position, delta in _counted(answers, record):
        writer.add(position, delta)
    return writer.whole(record.usage)


async def _events(answers: Answers, writer: Writer, record: Record) -> AsyncIterator[bytes]:
    for chunk in writer.opening():
        yield event(chunk)
    async for position, delta in _counted(answers, record):
        for chunk in writer.chunks(position, delta):
            yield event(chunk)
    for chunk in writer.closing(record.usage):
        yield event(chunk)


async def _counted(answers: Answers, record: Record) -> AsyncIterator[tuple[int, Delta]]:
    async for position, delta in answers.deltas():
        record.note(delta)
        if delta.finish_reason == "abort":  # not by us: we do not listen to what we abort
            raise ApiError(503, "the engine gave this request up; try again", retry_after_seconds=1)
        yield position, delta
