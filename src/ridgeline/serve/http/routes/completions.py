"""The endpoints that continue texts, `/v1/completions` and Mistral's `/v1/fim/completions`."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter, Request
from starlette.responses import Response

from ridgeline.serve.http.completion_request import begin_completions
from ridgeline.serve.http.growing_text import CompletionWriter
from ridgeline.serve.http.protocol.chat import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChunkChoice,
    ChunkDelta,
    CompletionMessage,
)
from ridgeline.serve.http.protocol.completions import Completion, CompletionRequest, FillRequest
from ridgeline.serve.http.protocol.token_usage import TokenUsage
from ridgeline.serve.http.reply import record_of, respond, service_of
from ridgeline.serve.messages import Delta

router = APIRouter()


@router.post("/v1/completions")
async def completions(request: Request, body: CompletionRequest) -> Response:
    """Continue each prompt, whole or as a stream."""
    begun = await begin_completions(service_of(request), record_of(request), body)
    return await respond(request, begun.submits, begun.writer, stream=body.stream)


@router.post("/v1/fim/completions")
async def fill(request: Request, body: FillRequest) -> Response:
    """Write what stands between two texts, told as a chat's answer, as Mistral does."""
    asked = body.completion
    begun = await begin_completions(service_of(request), record_of(request), asked, usual=None)
    writer = FilledTextWriter(begun.writer)
    return await respond(request, begun.submits, writer, stream=body.stream)


class FilledTextWriter:
    """Writes a completion as a chat, whole or as chunks; a `reply.ReplyWriter`."""

    def __init__(self, texts: CompletionWriter) -> None:
        self._texts = texts

    def add(self, position: int, delta: Delta) -> None:
        """Take what the engine said."""
        self._texts.add(position, delta)

    def whole(self, usage: TokenUsage) -> ChatCompletion:
        """The reply that is not streamed."""
        found = self._texts.whole(usage)
        choices = [
            ChatChoice(
                index=one.index,
                message=CompletionMessage(content=one.text),
                finish_reason=one.finish_reason,
                stop_reason=one.stop_reason,
            )
            for one in found.choices
        ]
        return ChatCompletion(
            id=found.id, created=found.created, model=found.model, choices=choices, usage=usage
        )

    def opening(self) -> Iterator[ChatChunk]:
        """No chunk comes before the first text."""
        return iter(())

    def chunks(self, position: int, delta: Delta) -> Iterator[ChatChunk]:
        """What a delta adds to the stream."""
        for found in self._texts.chunks(position, delta):
            yield _chunk(found)

    def closing(self, usage: TokenUsage) -> Iterator[ChatChunk]:
        """The last chunk, which says the usage where it is asked for."""
        for found in self._texts.closing(usage):
            yield _chunk(found)


def _chunk(found: Completion) -> ChatChunk:
    choices = [
        ChunkChoice(
            index=one.index,
            delta=ChunkDelta(role="assistant", content=one.text),
            finish_reason=one.finish_reason,
            stop_reason=one.stop_reason,
        )
        for one in found.choices
    ]
    return ChatChunk(
        id=found.id,
        created=found.created,
        model=found.model,
        choices=choices,
        usage=found.usage,
    )
