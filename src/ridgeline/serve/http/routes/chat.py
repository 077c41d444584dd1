"""The endpoint that completes conversations, `/v1/chat/completions`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec
from fastapi import APIRouter, Request
from msgspec import UNSET
from starlette.responses import Response

from ridgeline.serve.http.conversation import prompt_of
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
    FunctionCall,
    JsonObjectFormat,
    JsonSchemaFormat,
    TokenLogprob,
    ToolCall,
)
from ridgeline.serve.http.protocol.errors import refused
from ridgeline.serve.http.protocol.fields import LOWEST_LOGPROB, TokenUsage, schema_grammar
from ridgeline.serve.http.reply import new_id, record_of, respond, service_of
from ridgeline.serve.http.service import Service
from ridgeline.serve.http.token_report import TokenReport, prompt_logprobs_of
from ridgeline.serve.http.tool_calls import (
    CallPiece,
    Reader,
    check_tools,
    forced,
    reader_of,
    tools_of,
)
from ridgeline.serve.messages import Delta, Grammar, Logprob, Submit, TokenLogprobs

router = APIRouter()


@dataclass(slots=True)
class GrowingChat:
    """A completion of a chat, fed with its deltas, for a stream (`chunks`) or whole (`choice`)."""

    index: int
    reader: Reader | None
    """Finds tool calls; None where none may come."""
    one_call: bool
    """Calls after the first are dropped (`parallel_tool_calls: false`)."""
    num_top: int | None
    """The number of most likely tokens to report; None: no log-probabilities were asked for."""
    timer: CompletionTimer
    report: TokenReport
    tokens: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    """The ids of the calls so far."""
    content: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def take(self, delta: Delta) -> list[CallPiece]:
        """What the delta brought, calls found."""
        self.timer.note(delta)
        self.tokens.extend(delta.tokens)
        if self.reader is None:
            pieces = [CallPiece(content=delta.text)] if delta.text else []
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
        calls = self.reader.calls if self.reader is not None else []
        message = CompletionMessage(content=self.content or (None if calls else ""))
        if calls:
            named = zip(self.ids, calls, strict=False)  # dropped calls have no id
            message = CompletionMessage(
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
            token_ids=self.report.ids(self.tokens),
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
        return None if self.num_top is None else _chat_logprobs(found, self.num_top)

    def _delta(self, piece: CallPiece) -> ChunkDelta:
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


@router.post("/v1/chat/completions")
async def chat(request: Request, body: ChatRequest) -> Response:
    """Complete a conversation, whole or as a stream."""
    service, record = service_of(request), record_of(request)
    record.without_effect = body.without_effect
    record.model, record.metadata = body.model, body.metadata
    record.user = body.user or body.safety_identifier
    body = service.with_defaults(body, record)
    submit = await _submit(service, body)
    report = TokenReport.of(body, [submit])
    choices = [
        GrowingChat(
            index=index,
            reader=reader_of(body),
            one_call=body.parallel_tool_calls is False,
            num_top=(body.top_logprobs or 0) if body.logprobs else None,
            timer=service.meters.timer(record),
            report=report,
        )
        for index in range(submit.n)
    ]
    writer = _Chat(body, submit.id, choices, report)
    return await respond(request, [submit], writer, stream=body.stream)


async def _submit(service: Service, body: ChatRequest) -> Submit:
    check_tools(body)
    adapter = service.adapter(body.model)
    continues = bool(body.continue_final_message)
    opens = not continues if body.add_generation_prompt is None else body.add_generation_prompt
    prompt = await prompt_of(
        service.text,
        body.messages,
        tools_of(body),
        opens_turn=opens,
        continues=continues,
        variables=body.chat_template_kwargs or {},
        documents=body.documents or (),
    )
    wanted = body.max_completion_tokens or body.max_tokens
    prompt = service.cut(prompt, body.truncate_prompt_tokens, wanted)
    return Submit(
        id=new_id("chatcmpl"),
        prompt=prompt,
        sampling=body.sampling(
            max_tokens=service.room(prompt, wanted, "messages"),
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            grammar=_grammar(body),
            vocab=service.text.vocab,
            stops=service.text.template.stops,
            forbidden=await service.text.forbidden(body.bad_words or []),
        ),
        n=body.n or 1,
        priority=body.priority or 0,
        adapter=adapter,
    )


def _grammar(body: ChatRequest) -> Grammar | None:
    """The grammar of the fields that can ask for one; two of them would contradict each other."""
    wanted = {
        "tool_choice": forced(body),
        "response_format": _format(body),
        "structured_outputs": body.grammar(),
    }
    given = {name: grammar for name, grammar in wanted.items() if grammar is not None}
    if len(given) > 1:
        first, second = list(given)[:2]
        raise refused(f"{first} and {second} cannot go together: each constrains the answer", first)
    return next(iter(given.values()), None)


def _format(body: ChatRequest) -> Grammar | None:
    match body.response_format:
        case JsonObjectFormat():
            return Grammar(kind="json_object")
        case JsonSchemaFormat(json_schema=wanted):
            return schema_grammar(wanted.schema_ or {}, "response_format")
    return None


class _Chat:
    """Writes the completions, whole or as chunks; a `reply.ReplyWriter`."""

    def __init__(
        self,
        body: ChatRequest,
        completion_id: str,
        choices: list[GrowingChat],
        report: TokenReport,
    ) -> None:
        self._body = body
        self._report = report
        self._of_prompt: tuple[TokenLogprobs, ...] = ()
        self._id = completion_id
        self._choices = choices
        self._created = int(time.time())

    def add(self, position: int, delta: Delta) -> None:  # noqa: ARG002  a chat has one prompt
        self._of_prompt = self._of_prompt or delta.prompt_logprobs
        self._choices[delta.index].take(delta)

    def whole(self, usage: TokenUsage) -> ChatCompletion:
        return ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._body.model,
            choices=[choice.choice() for choice in self._choices],
            usage=usage,
            prompt_token_ids=self._report.prompt_ids(),
            prompt_logprobs=prompt_logprobs_of(self._of_prompt, self._body.prompt_logprobs),
        )

    def opening(self) -> Iterator[ChatChunk]:
        for choice in self._choices:
            role = ChunkDelta(role="assistant", content="")
            chunk = self._chunk([ChunkChoice(index=choice.index, delta=role)])
            yield msgspec.structs.replace(chunk, prompt_token_ids=self._report.prompt_ids())

    def chunks(self, position: int, delta: Delta) -> Iterator[ChatChunk]:  # noqa: ARG002  as above
        self._report.take(delta)
        for chunk in self._choices[delta.index].chunks(delta):
            yield self._chunk([chunk], self._report.usage())

    def closing(self, usage: TokenUsage) -> Iterator[ChatChunk]:
        if self._body.usage_in_stream:
            yield self._chunk([], usage)

    def _chunk(self, choices: list[ChunkChoice], usage: TokenUsage | None = None) -> ChatChunk:
        return ChatChunk(
            id=self._id,
            created=self._created,
            model=self._body.model,
            choices=choices,
            usage=usage if self._body.usage_in_stream else UNSET,
        )


def _chat_logprobs(found: Iterable[TokenLogprobs], num_top: int) -> ChoiceLogprobs:
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
