"""A text that was filled in, told in the shape of a chat's answer, as Mistral's API does."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.serve.http.growing_text import CompletionWriter
from ridgeline.serve.http.protocol.chat import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChunkChoice,
    ChunkDelta,
    CompletionMessage,
)
from ridgeline.serve.http.protocol.completions import Completion
from ridgeline.serve.http.protocol.token_usage import TokenUsage
from ridgeline.serve.messages import Delta


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
