"""The endpoint that completes conversations, `/v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
from fastapi import APIRouter, Request
from msgspec import UNSET
from starlette.responses import Response

from ridgeline.serve.http.chat_request import BegunChat, begin_chat, chat_prompt
from ridgeline.serve.http.protocol.chat import (
    ChatChunk,
    ChatCompletion,
    ChatRequest,
    ChunkChoice,
    ChunkDelta,
)
from ridgeline.serve.http.protocol.token_usage import CompletionDetails, TokenUsage
from ridgeline.serve.http.reply import json_response, record_of, respond, service_of
from ridgeline.serve.http.token_report import prompt_logprobs_of
from ridgeline.serve.messages import Delta, TokenLogprobs

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat(request: Request, body: ChatRequest) -> Response:
    """Complete a conversation, whole or as a stream."""
    begun = await begin_chat(service_of(request), record_of(request), body)
    return await respond(request, [begun.submit], _Chat(begun), stream=body.stream)


@router.post("/v1/chat/completions/input_tokens")
async def input_tokens(request: Request, body: ChatRequest) -> Response:
    """How many tokens the model would be given."""
    record = record_of(request)
    record.without_effect = body.without_effect
    prompt = await chat_prompt(service_of(request), body)
    record.prompt_tokens = len(prompt)
    return json_response({"object": "response.input_tokens", "input_tokens": len(prompt)})


class _Chat:
    """Writes the completions, whole or as chunks; a `reply.ReplyWriter`."""

    def __init__(self, chat: BegunChat) -> None:
        self._body = chat.body
        self._report = chat.report
        self._of_prompt: tuple[TokenLogprobs, ...] = ()
        self._id = chat.submit.id
        self._choices = chat.choices
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
            usage=self._with_thoughts(usage),
            prompt_token_ids=self._report.prompt_ids(),
            prompt_logprobs=prompt_logprobs_of(self._of_prompt, self._body.prompt_logprobs),
        )

    def opening(self) -> Iterator[ChatChunk]:
        for choice in self._choices:
            role = ChunkDelta(role="assistant", content="")
            first = [ChunkChoice(index=choice.index, delta=role)]
            chunk = self._chunk(first, self._report.usage())
            yield msgspec.structs.replace(chunk, prompt_token_ids=self._report.prompt_ids())

    def chunks(self, position: int, delta: Delta) -> Iterator[ChatChunk]:  # noqa: ARG002  as above
        self._report.take(delta)
        for chunk in self._choices[delta.index].chunks(delta):
            yield self._chunk([chunk], self._report.usage())

    def closing(self, usage: TokenUsage) -> Iterator[ChatChunk]:
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
