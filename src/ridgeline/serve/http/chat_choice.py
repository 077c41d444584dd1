"""One answer of a chat as it grows: text, tool calls, log-probabilities, how it ended."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from ridgeline.serve.http.logprobs import chat_logprobs
from ridgeline.serve.http.metrics import AnswerTimer
from ridgeline.serve.http.protocol.chat import (
    AnswerMessage,
    ChatChoice,
    ChoiceLogprobs,
    ChunkChoice,
    ChunkDelta,
)
from ridgeline.serve.http.protocol.tools import FunctionCall, ToolCall
from ridgeline.serve.http.tool_calls import Piece
from ridgeline.serve.http.tool_choice import Reader
from ridgeline.serve.messages import Delta, TokenLogprobs


@dataclass(slots=True)
class Choice:
    """Fed with the deltas of one answer, for a stream (`chunks`) or for the whole (`choice`)."""

    index: int
    reader: Reader | None
    """Finds tool calls; None where none may come."""
    one_call: bool
    """Calls after the first are dropped (`parallel_tool_calls: false`)."""
    num_top: int | None
    """None: no log-probabilities were asked for."""
    timer: AnswerTimer
    ids: list[str] = field(default_factory=list)
    """Of the calls."""
    content: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def take(self, delta: Delta) -> list[Piece]:
        """What the delta brought, calls found."""
        self.timer.note(delta)
        if self.reader is None:
            pieces = [Piece(content=delta.text)] if delta.text else []
        else:
            pieces = self.reader.feed(delta.text)
            if delta.finish_reason is not None:
                pieces += self.reader.finish()
            if self.one_call:
                pieces = [piece for piece in pieces if piece.index <= 0]
        if self.num_top is not None:
            self.logprobs.extend(delta.logprobs)
        for piece in pieces:
            self.content += piece.content
            if piece.name is not None:
                self.ids.append(f"call_{uuid.uuid4().hex[:24]}")
        if delta.finish_reason is not None:
            self.finish_reason = self._reason(delta.finish_reason)
            self.stop_reason = delta.stop_reason
        return pieces

    def chunks(self, delta: Delta) -> Iterator[ChunkChoice]:
        """What a stream shows of the delta."""
        pieces = self.take(delta)
        logprobs = self._logprobs(delta.logprobs)
        if logprobs is not None and not logprobs.content:
            logprobs = None
        if not pieces and logprobs is not None:
            pieces = [Piece()]  # held back for now, but its tokens are not
        for piece in pieces:
            yield ChunkChoice(index=self.index, delta=self._delta(piece), logprobs=logprobs)
            logprobs = None
        if self.finish_reason is not None:
            yield ChunkChoice(
                index=self.index,
                delta=ChunkDelta(),
                finish_reason=self.finish_reason,
                stop_reason=self.stop_reason,
            )

    def choice(self) -> ChatChoice:
        """The whole answer."""
        calls = self.reader.calls if self.reader is not None else []
        message = AnswerMessage(content=self.content or (None if calls else ""))
        if calls:
            named = zip(self.ids, calls, strict=False)  # dropped calls have no id
            message = AnswerMessage(
                content=self.content or None,
                tool_calls=[
                    ToolCall(
                        id=call_id,
                        type="function",
                        function=FunctionCall(name=call.name, arguments=call.arguments),
                    )
                    for call_id, call in named
                ],
            )
        return ChatChoice(
            index=self.index,
            message=message,
            logprobs=self._logprobs(self.logprobs),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )

    def _reason(self, reason: str) -> str:
        calls = self.reader.calls if self.reader is not None else []
        complete = bool(calls) and all(call.done for call in calls)
        return "tool_calls" if reason == "stop" and complete else reason

    def _logprobs(
        self, found: tuple[TokenLogprobs, ...] | list[TokenLogprobs]
    ) -> ChoiceLogprobs | None:
        return None if self.num_top is None else chat_logprobs(found, self.num_top)

    def _delta(self, piece: Piece) -> ChunkDelta:
        if piece.index < 0:
            return ChunkDelta(content=piece.content)
        new = piece.name is not None
        call = ToolCall(
            index=piece.index,
            id=self.ids[piece.index] if new else None,
            type="function" if new else None,
            function=FunctionCall(name=piece.name, arguments=piece.arguments),
        )
        return ChunkDelta(tool_calls=[call])
