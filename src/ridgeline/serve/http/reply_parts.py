"""A completion as a row of parts, each a thought, a text or a call.

One API calls them items, another blocks. They are made from the pieces of a `GrowingChat`, so that
every API tells the same of a completion.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from ridgeline.serve.http.growing_chat import GrowingChat
from ridgeline.serve.http.tool_calls import CallPiece
from ridgeline.serve.messages import Delta, TokenLogprobs


@dataclass(slots=True)
class ReplyPart:
    """A stretch of a completion that is all of one kind."""

    index: int
    kind: Literal["thought", "text", "call"]
    text: str = ""
    """What it says; of a call, its arguments."""
    name: str = ""
    """The function's, of a call."""
    call_id: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Log-probabilities of a text's tokens, where they are asked for."""


@dataclass(frozen=True, slots=True)
class PartStep:
    """What happened to a part: it began, it grew by some text, or it is over."""

    what: Literal["began", "grew", "over"]
    part: ReplyPart
    text: str = ""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Log-probabilities of the tokens by which a text grew."""


@dataclass(slots=True)
class ReplyParts:
    """The parts of one completion so far."""

    chat: GrowingChat
    parts: list[ReplyPart] = field(default_factory=list)
    _logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Log-probabilities of tokens whose text is held back."""

    def take(self, delta: Delta) -> Iterator[PartStep]:
        """What a delta does to the parts; the completion's last one ends the last part."""
        pieces = self.chat.take(delta)
        if self.chat.num_top is not None:
            self._logprobs.extend(delta.logprobs)
        for piece in pieces:
            yield from self._add(piece)
        if delta.finish_reason is not None:
            if not self.parts:
                yield self._begin("text")
            yield PartStep("over", self.parts[-1])

    def _add(self, piece: CallPiece) -> Iterator[PartStep]:
        kind: Literal["thought", "text", "call"] = "text" if piece.index < 0 else "call"
        if piece.reasoning:
            kind = "thought"
        if not self.parts or self.parts[-1].kind != kind or piece.name is not None:
            if self.parts:
                yield PartStep("over", self.parts[-1])
            yield self._begin(kind, piece)
        part, text = self.parts[-1], piece.reasoning or piece.content or piece.arguments
        logprobs = tuple(self._logprobs) if kind == "text" else ()
        self._logprobs.clear()
        part.logprobs += logprobs
        part.text += text
        if text:
            yield PartStep("grew", part, text, logprobs)

    def _begin(
        self, kind: Literal["thought", "text", "call"], piece: CallPiece | None = None
    ) -> PartStep:
        part = ReplyPart(len(self.parts), kind)
        if kind == "call" and piece is not None:
            part.name, part.call_id = piece.name or "", self.chat.ids[piece.index]
        self.parts.append(part)
        return PartStep("began", part)
