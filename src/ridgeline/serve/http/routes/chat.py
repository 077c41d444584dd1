"""`/v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import Iterator

from fastapi import APIRouter, Request
from msgspec import UNSET
from starlette.responses import Response

from ridgeline.serve.http.chat_choice import Choice
from ridgeline.serve.http.conversation import prompt_of
from ridgeline.serve.http.exchange import respond
from ridgeline.serve.http.protocol.chat import (
    ChatChunk,
    ChatCompletion,
    ChatRequest,
    ChunkChoice,
    ChunkDelta,
    JsonObjectFormat,
    JsonSchemaFormat,
)
from ridgeline.serve.http.protocol.errors import refused
from ridgeline.serve.http.protocol.sampling import schema_grammar
from ridgeline.serve.http.protocol.usage import Usage
from ridgeline.serve.http.service import Service, new_id, record_of, service_of
from ridgeline.serve.http.tool_choice import check_tools, forced, reader_of, tools_of
from ridgeline.serve.messages import Delta, Grammar, Submit

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat(request: Request, body: ChatRequest) -> Response:
    """Answer a conversation."""
    service, record = service_of(request), record_of(request)
    record.model, record.metadata = body.model, body.metadata
    record.user = body.user or body.safety_identifier
    submit = await _submit(service, body)
    choices = [
        Choice(
            index=index,
            reader=reader_of(body),
            one_call=body.parallel_tool_calls is False,
            num_top=(body.top_logprobs or 0) if body.logprobs else None,
            timer=service.meters.timer(record),
        )
        for index in range(submit.n)
    ]
    return await respond(request, [submit], _Chat(body, submit.id, choices), stream=body.stream)


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
    )
    wanted = body.max_completion_tokens or body.max_tokens
    return Submit(
        id=new_id("chatcmpl"),
        prompt=prompt,
        sampling=body.sampling(
            max_tokens=service.room(prompt, wanted, "messages"),
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            grammar=_grammar(body),
            vocab=service.text.vocab,
        ),
        n=body.n or 1,
        priority=body.priority or 0,
        adapter=adapter,
    )


def _grammar(body: ChatRequest) -> Grammar | None:
    """Of the fields that can ask for one; two of them would contradict each other."""
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
    """Writes the answers, whole or as chunks; an `exchange.Writer`."""

    def __init__(self, body: ChatRequest, answer_id: str, choices: list[Choice]) -> None:
        self._body = body
        self._id = answer_id
        self._choices = choices
        self._created = int(time.time())

    def add(self, position: int, delta: Delta) -> None:  # noqa: ARG002  a chat has one prompt
        self._choices[delta.index].take(delta)

    def whole(self, usage: Usage) -> ChatCompletion:
        return ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._body.model,
            choices=[choice.choice() for choice in self._choices],
            usage=usage,
        )

    def opening(self) -> Iterator[ChatChunk]:
        for choice in self._choices:
            role = ChunkDelta(role="assistant", content="")
            yield self._chunk([ChunkChoice(index=choice.index, delta=role)])

    def chunks(self, position: int, delta: Delta) -> Iterator[ChatChunk]:  # noqa: ARG002  as above
        for chunk in self._choices[delta.index].chunks(delta):
            yield self._chunk([chunk])

    def closing(self, usage: Usage) -> Iterator[ChatChunk]:
        if self._body.usage_in_stream:
            yield self._chunk([], usage)

    def _chunk(self, choices: list[ChunkChoice], usage: Usage | None = None) -> ChatChunk:
        return ChatChunk(
            id=self._id,
            created=self._created,
            model=self._body.model,
            choices=choices,
            usage=usage if self._body.usage_in_stream else UNSET,
        )
