"""Completions of a chat as their deltas come; told whole, or as the chunks of a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec import UNSET

from ridgeline.serve.http.clean_text import CleanText
from ridgeline.serve.http.metrics import CompletionTimer
from ridgeline.serve.http.protocol.chat import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatRequest,
    ChoiceLogprobs,
    ChosenLogprob,
    ChunkChoice,
    ChunkDelta,
    CompletionMessage,
    TokenLogprob,
)
from ridgeline.serve.http.protocol.fields import LOWEST_LOGPROB
from ridgeline.serve.http.protocol.token_usage import CompletionDetails, TokenUsage
from ridgeline.serve.http.protocol.tools import FunctionCall, ToolCall
from ridgeline.serve.http.reasoning import ThoughtReader
from ridgeline.serve.http.text import TokenReport, prompt_logprobs_of
from ridgeline.serve.http.tool_calls import Call, CallPiece
from ridgeline.serve.http.tool_request import Reader
from ridgeline.serve.messages import Delta, Logprob, Submit, TokenLogprobs


@dataclass(slots=True)
class GrowingChat:
    """A completion of a chat, fed with its deltas, for a stream (`chunks`) or whole (`choice`)."""

    index: int
    thoughts: ThoughtReader | None
    """Tells thoughts from the rest; None where none are told."""
    shows_thoughts: bool
    """Thoughts are part of the reply (`include_reasoning`)."""
    reader: Reader | None
    """Finds tool calls; None where none may come."""
    clean: CleanText | None
    """Leaves out of the text what is no text; None: all of it is."""
    one_call: bool
    """Calls after the first are dropped (`parallel_tool_calls: false`)."""
    num_top: int | None
    """The number of most likely tokens to report; None: no log-probabilities were asked for."""
    timer: CompletionTimer
    report: TokenReport
    custom: frozenset[str] = frozenset()
    """The names of custom tools, whose calls have free text in place of arguments."""
    with_functions: bool = False
    """Its call is told in the words before there were tools."""
    tokens: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    """The ids of the calls so far."""
    content: str = ""
    reasoning: str = ""
    reasoning_tokens: int = 0
    """The number of tokens that came while it thought, tags included."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def take(self, delta: Delta) -> list[CallPiece]:
        """What the delta brought, calls found."""
        self.timer.note(delta)
        self.tokens.extend(delta.tokens)
        thought, text = self._apart(delta)
        pieces = [CallPiece(reasoning=thought)] if thought and self.shows_thoughts else []
        pieces += self._calls_in(text, ends=delta.finish_reason is not None)
        if self.num_top is not None:
            self.logprobs.extend(delta.logprobs)
        for piece in pieces:
            self.content += piece.content
            self.reasoning += piece.reasoning
            if piece.name is not None:
                self.ids.append(f"call_{uuid.uuid4().hex[:24]}")
        if delta.finish_reason is not None:
            self.finish_reason = self._reason(delta.finish_reason)
            self.stop_reason = delta.stop_reason
        return pieces

    def _apart(self, delta: Delta) -> tuple[str, str]:
        """What the delta brought of thoughts, and of the rest."""
        if self.thoughts is None:
            return "", delta.text
        before = self.thoughts.thinking
        thought, text = self.thoughts.feed(delta.text)
        if before or self.thoughts.thinking:
            self.reasoning_tokens += len(delta.tokens)
        if delta.finish_reason is not None:
            more, rest = self.thoughts.finish()
            thought, text = thought + more, text + rest
        return thought, text

    def _calls_in(self, text: str, *, ends: bool) -> list[CallPiece]:
        """Text of the answer, calls found."""
        if self.reader is None:
            pieces = [CallPiece(content=text)] if text else []
        else:
            pieces = self.reader.feed(text)
            if ends:
                pieces += self.reader.finish()
        if self.clean is not None:
            pieces = self.clean.pieces(pieces, ends=ends)
        return [piece for piece in pieces if piece.index <= 0 or not self.one_call]

    def chunks(self, delta: Delta) -> Iterator[ChunkChoice]:
        """What a stream shows of the delta."""
        pieces = self.take(delta)
        logprobs = self._logprobs(delta.logprobs)
        if logprobs is not None and not logprobs.content:
            logprobs = None
        ids = self.report.ids(delta.tokens) or UNSET
        if not pieces and (logprobs is not None or ids):
            pieces = [CallPiece()]  # held back for now, but its tokens are not
        for piece in pieces:
            yield ChunkChoice(
                index=self.index, delta=self._delta(piece), logprobs=logprobs, token_ids=ids
            )
            logprobs, ids = None, UNSET
        if self.finish_reason is not None:
            yield ChunkChoice(
                index=self.index,
                delta=ChunkDelta(),
                finish_reason=self.finish_reason,
                stop_reason=self.stop_reason,
            )

    def choice(self) -> ChatChoice:
        """The whole completion, when it has ended."""
        calls = self.calls
        thoughts = self.reasoning or UNSET
        function = next((one for _, one in calls), None) if self.with_functions else None
        message = CompletionMessage(
            content=self.content or (None if calls else ""),
            reasoning_content=thoughts,
            reasoning=thoughts,
            function_call=UNSET
            if function is None
            else FunctionCall(name=function.name, arguments=function.arguments),
            tool_calls=[
                ToolCall.of(self.kind(call.name), call.name, call.arguments, call_id=call_id)
                for call_id, call in (() if self.with_functions else calls)
            ]
            or UNSET,
        )
        return ChatChoice(
            index=self.index,
            message=message,
            token_ids=self.report.ids(self.tokens),
            logprobs=self._logprobs(self.logprobs),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )

    @property
    def calls(self) -> list[tuple[str, Call]]:
        """The calls so far with their ids; dropped calls have none."""
        found = self.reader.calls if self.reader is not None else []
        return list(zip(self.ids, found, strict=False))

    def kind(self, name: str) -> Literal["function", "custom"]:
        """What kind of tool has a name."""
        return "custom" if name in self.custom else "function"

    def _reason(self, reason: str) -> str:
        calls = self.reader.calls if self.reader is not None else []
        complete = bool(calls) and all(call.done for call in calls)
        if reason != "stop" or not complete:
            return reason
        return "function_call" if self.with_functions else "tool_calls"

    def _logprobs(
        self, found: tuple[TokenLogprobs, ...] | list[TokenLogprobs]
    ) -> ChoiceLogprobs | None:
        if self.num_top is None:
            return None
        return chat_logprobs(self.report.named(found), self.num_top)

    def _delta(self, piece: CallPiece) -> ChunkDelta:
        if piece.reasoning:
            return ChunkDelta(reasoning_content=piece.reasoning, reasoning=piece.reasoning)
        if piece.index < 0:
            return ChunkDelta(content=piece.content)
        assert self.reader is not None
        if self.with_functions:
            function = FunctionCall(name=piece.name, arguments=piece.arguments)
            return ChunkDelta(function_call=function)
        call = ToolCall.of(
            self.kind(self.reader.calls[piece.index].name),
            piece.name,
            piece.arguments,
            call_id=None if piece.name is None else self.ids[piece.index],
            index=piece.index,
        )
        return ChunkDelta(tool_calls=[call])


@dataclass(frozen=True, slots=True)
class BegunChat:
    """A conversation on its way to the engine."""

    body: ChatRequest
    """The request, with the model's defaults in it."""
    submit: Submit
    choices: list[GrowingChat]
    report: TokenReport


class ChatWriter:
    """Writes the completions of a chat, whole or as chunks; a `reply.ReplyWriter`."""

    def __init__(self, chat: BegunChat) -> None:
        self._body = chat.body
        self._report = chat.report
        self._of_prompt: tuple[TokenLogprobs, ...] = ()
        self._id = chat.submit.id
        self._choices = chat.choices
        self._created = int(time.time())

    def add(self, position: int, delta: Delta) -> None:  # noqa: ARG002  a chat has one prompt
        """Take what the engine said."""
        self._of_prompt = self._of_prompt or delta.prompt_logprobs
        self._choices[delta.index].take(delta)

    def whole(self, usage: TokenUsage) -> ChatCompletion:
        """The reply that is not streamed."""
        return ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._body.model,
            choices=[choice.choice() for choice in self._choices],
            usage=self._with_thoughts(usage),
            prompt_token_ids=self._report.prompt_ids(),
            prompt_logprobs=prompt_logprobs_of(self._of_prompt, self._body.prompt_logprobs),
        )

    def opening(self) -> Iterator[ChatChunk]:
        """The chunks that say whose words follow."""
        for choice in self._choices:
            role = ChunkDelta(role="assistant", content="")
            first = [ChunkChoice(index=choice.index, delta=role)]
            chunk = self._chunk(first, self._report.usage())
            yield msgspec.structs.replace(chunk, prompt_token_ids=self._report.prompt_ids())

    def chunks(self, position: int, delta: Delta) -> Iterator[ChatChunk]:  # noqa: ARG002  as above
        """What a delta adds to the stream."""
        self._report.take(delta)
        for chunk in self._choices[delta.index].chunks(delta):
            yield self._chunk([chunk], self._report.usage())

    def closing(self, usage: TokenUsage) -> Iterator[ChatChunk]:
        """The last chunk, which says the usage where it is asked for."""
        if self._body.usage_in_stream:
            yield self._chunk([], self._with_thoughts(usage))

    def _with_thoughts(self, usage: TokenUsage) -> TokenUsage:
        if all(one.thoughts is None for one in self._choices):
            return usage
        thought = sum(one.reasoning_tokens for one in self._choices)
        details = CompletionDetails(reasoning_tokens=thought)
        return msgspec.structs.replace(usage, completion_tokens_details=details)

    def _chunk(self, choices: list[ChunkChoice], usage: TokenUsage | None = None) -> ChatChunk:
        return ChatChunk(
            id=self._id,
            created=self._created,
            model=self._body.model,
            choices=choices,
            usage=usage if self._body.usage_in_stream else UNSET,
        )


def chat_logprobs(found: Iterable[TokenLogprobs], num_top: int) -> ChoiceLogprobs:
    """Log-probabilities of a chat: the chosen token, and as many others as were asked for."""
    return ChoiceLogprobs(
        content=[
            ChosenLogprob(
                token=one.chosen.text,
                logprob=max(one.chosen.logprob, LOWEST_LOGPROB),
                bytes=list(one.chosen.text.encode()),
                top_logprobs=[_token_logprob(top) for top in one.top[:num_top]],
            )
            for one in found
            if one.chosen is not None
        ]
    )


def _token_logprob(one: Logprob) -> TokenLogprob:
    return TokenLogprob(
        token=one.text, logprob=max(one.logprob, LOWEST_LOGPROB), bytes=list(one.text.encode())
    )
