"""The endpoints of Google's API, `models/NAME:generateContent` and its like.

Its stream has the documents of the whole reply, each with what came since the last one; there is
no mark of the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.responses import Response

from ridgeline.serve.http.embedding import cut, shortened, tokens_of, vectors_of
from ridgeline.serve.http.growing_chat import BegunChat
from ridgeline.serve.http.protocol.chat import ChatRequest
from ridgeline.serve.http.protocol.embeddings import VectorFields
from ridgeline.serve.http.protocol.errors import ApiError, renaming
from ridgeline.serve.http.protocol.fields import LOWEST_LOGPROB
from ridgeline.serve.http.protocol.google import (
    NAMES,
    BatchEmbedRequest,
    CountTokensRequest,
    EmbedContentRequest,
    GenerateContentRequest,
)
from ridgeline.serve.http.protocol.token_usage import TokenUsage
from ridgeline.serve.http.reply import (
    StreamShape,
    json_response,
    record_of,
    respond,
    service_of,
)
from ridgeline.serve.http.reply_parts import PartStep, ReplyParts
from ridgeline.serve.http.routes.chat import begin_chat, chat_of, chat_prompt
from ridgeline.serve.messages import Delta, TokenLogprobs

router = APIRouter()
Document = dict[str, Any]


@router.post("/v1beta/models/{name:path}:generateContent")
@router.post("/v1/models/{name:path}:generateContent")
async def generate_content(request: Request, name: str, body: GenerateContentRequest) -> Response:
    """Answer a conversation, told whole."""
    return await _answered(request, name, body, stream=False)


@router.post("/v1beta/models/{name:path}:streamGenerateContent")
@router.post("/v1/models/{name:path}:streamGenerateContent")
async def stream_generate_content(
    request: Request, name: str, body: GenerateContentRequest
) -> Response:
    """Answer a conversation as a stream of events, or as a list where none is asked for."""
    stream = request.query_params.get("alt") == "sse"
    return await _answered(request, name, body, stream=stream, listed=True)


@router.post("/v1beta/models/{name:path}:countTokens")
@router.post("/v1/models/{name:path}:countTokens")
async def count_tokens(request: Request, name: str, body: CountTokensRequest) -> Response:
    """The number of tokens of a conversation as the model would see it."""
    with renaming(NAMES):
        prompt = await chat_prompt(service_of(request), _chat(body.conversation, name))
    record_of(request).prompt_tokens = len(prompt)
    return json_response({"totalTokens": len(prompt)})


@router.post("/v1beta/models/{name:path}:embedContent")
@router.post("/v1/models/{name:path}:embedContent")
async def embed_content(request: Request, name: str, body: EmbedContentRequest) -> Response:
    """The vector of a text."""
    (vector,) = await _vectors(request, name, [body])
    return json_response({"embedding": {"values": vector}})


@router.post("/v1beta/models/{name:path}:batchEmbedContents")
@router.post("/v1/models/{name:path}:batchEmbedContents")
async def batch_embed(request: Request, name: str, body: BatchEmbedRequest) -> Response:
    """The vectors of several texts."""
    vectors = await _vectors(request, name, body.requests)
    return json_response({"embeddings": [{"values": one} for one in vectors]})


@router.get("/v1beta/models")
async def models(request: Request) -> Response:
    """The models and their adapters."""
    return json_response({"models": list(_cards(request))})


@router.get("/v1beta/models/{name:path}")
async def model(request: Request, name: str) -> Response:
    """The model, or one of its adapters."""
    found = next((one for one in _cards(request) if one["name"] == f"models/{name}"), None)
    if found is None:
        service_of(request).adapter(name)
    return json_response(found)


async def _answered(
    request: Request,
    name: str,
    body: GenerateContentRequest,
    *,
    stream: bool,
    listed: bool = False,
) -> Response:
    record = record_of(request)
    record.without_effect = body.without_effect
    with renaming(NAMES):
        begun = await begin_chat(service_of(request), record, _chat(body, name))
    writer = _Answer(begun, record.model, listed=listed)
    with renaming(NAMES):
        return await respond(request, [begun.submit], writer, stream=stream, shape=EVENTS)


def _chat(body: GenerateContentRequest, name: str) -> ChatRequest:
    """The chat that asks the same. Raises RequestValidationError."""
    try:
        fields = body.chat_fields(name)
    except ValidationError as error:
        wrong = [{**one, "loc": ("body", "tools", *one["loc"])} for one in error.errors()]
        raise RequestValidationError(wrong) from None
    return chat_of(fields)


def _failure(error: ApiError) -> Document:
    """The last event of a stream that an error ends."""
    return error.google_body


EVENTS = StreamShape(marked=False, failure=_failure)


async def _vectors(
    request: Request, name: str, given: list[EmbedContentRequest]
) -> list[list[float]]:
    fields = VectorFields.model_validate({"model": name})
    prompts = [await tokens_of(request, fields, one.content.text, "content") for one in given]
    prompts = [cut(request, one, "NONE", None) for one in prompts]
    vectors = await vectors_of(request, fields, prompts)
    if any(one.task_type or one.title for one in given):
        record_of(request).without_effect = ["taskType"]
    lengths = [one.output_dimensionality for one in given]
    return [
        list(vector if length is None else shortened(vector, length))
        for vector, length in zip(vectors, lengths, strict=True)
    ]


def _cards(request: Request) -> Iterator[Document]:
    methods = ["generateContent", "streamGenerateContent", "countTokens", "embedContent",
               "batchEmbedContents"]  # fmt: skip
    for service in service_of(request).all:
        for name in (*service.settings.names, *service.adapters):
            yield {
                "name": f"models/{name}",
                "displayName": name,
                "version": "1",
                "inputTokenLimit": service.ready.max_length,
                "outputTokenLimit": service.ready.max_length,
                "supportedGenerationMethods": methods,
            }


class _Answer:
    """Writes the candidates, whole or as events; a `reply.ReplyWriter`."""

    def __init__(self, chat: BegunChat, model: str, *, listed: bool) -> None:
        self._id = chat.submit.id
        self._model = model
        self._listed = listed
        self._replies = [ReplyParts(one) for one in chat.choices]

    def add(self, position: int, delta: Delta) -> None:
        for _ in self.chunks(position, delta):
            pass

    def whole(self, usage: TokenUsage) -> Any:
        found = self._document([self._all_of(one) for one in self._replies], usage)
        return [found] if self._listed else found

    def opening(self) -> Iterator[Document]:
        return iter(())

    def chunks(self, position: int, delta: Delta) -> Iterator[Document]:  # noqa: ARG002  one prompt
        reply = self._replies[delta.index]
        steps = list(reply.take(delta))
        parts = [part for step in steps if (part := _added(step)) is not None]
        found = [one for step in steps for one in step.logprobs]
        if parts:
            yield self._document([_candidate(reply, parts, found)], None)

    def closing(self, usage: TokenUsage) -> Iterator[Document]:
        ends = [{**_candidate(one, [{"text": ""}], []), **_end(one)} for one in self._replies]
        yield self._document(ends, usage)

    def _all_of(self, reply: ReplyParts) -> Document:
        parts = [
            one
            for part in reply.parts
            if (one := _part(part.kind, part.text, part.name, part.call_id)) is not None
        ]
        found = [one for part in reply.parts for one in part.logprobs]
        return {**_candidate(reply, parts, found), **_end(reply)}

    def _document(self, candidates: list[Document], usage: TokenUsage | None) -> Document:
        told: Document = {"candidates": candidates, "modelVersion": self._model}
        if usage is not None:
            thoughts = sum(one.chat.reasoning_tokens for one in self._replies)
            told["usageMetadata"] = {
                "promptTokenCount": usage.prompt_tokens,
                "candidatesTokenCount": usage.completion_tokens - thoughts,
                "thoughtsTokenCount": thoughts,
                "totalTokenCount": usage.total_tokens,
                "cachedContentTokenCount": usage.prompt_tokens_details.cached_tokens,
            }
        return {**told, "responseId": self._id}


def _candidate(reply: ReplyParts, parts: list[Document], found: list[TokenLogprobs]) -> Document:
    told = {"index": reply.chat.index, "content": {"role": "model", "parts": parts}}
    return told | ({"logprobsResult": _logprobs(found)} if found else {})


def _end(reply: ReplyParts) -> Document:
    return {"finishReason": "MAX_TOKENS" if reply.chat.finish_reason == "length" else "STOP"}


def _added(step: PartStep) -> Document | None:
    """What a step adds to a stream; a call comes when it is complete."""
    part = step.part
    if part.kind == "call":
        return _part("call", part.text, part.name, part.call_id) if step.what == "over" else None
    return _part(part.kind, step.text, "", "") if step.what == "grew" else None


def _part(kind: str, text: str, name: str, call_id: str) -> Document | None:
    """A part of an answer; None: a call within whose arguments it ends."""
    if kind != "call":
        return {"text": text, **({"thought": True} if kind == "thought" else {})}
    try:
        given = json.loads(text or "{}")
    except ValueError:
        return None
    called = {"id": call_id, "name": name, "args": given}
    return {"functionCall": called} if isinstance(given, dict) else None


def _logprobs(found: list[TokenLogprobs]) -> Document:
    def told(token: Any) -> Document:
        probability = max(token.logprob, LOWEST_LOGPROB)
        return {"token": token.text, "tokenId": token.token, "logProbability": probability}

    chosen = [one for one in found if one.chosen is not None]
    return {
        "chosenCandidates": [told(one.chosen) for one in chosen],
        "topCandidates": [{"candidates": [told(top) for top in one.top]} for one in chosen],
    }
