"""The endpoint of Anthropic's API, `/v1/messages`: a chat in other words.

Its stream has events with names: the message, its blocks, and what each grows by.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Iterator
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.responses import Response

from ridgeline.serve.http.context_edits import edited
from ridgeline.serve.http.growing_chat import BegunChat
from ridgeline.serve.http.message_request import NAMES, chat_fields
from ridgeline.serve.http.protocol.errors import ApiError, renaming
from ridgeline.serve.http.protocol.message_blocks import Turn
from ridgeline.serve.http.protocol.messages import MessagesRequest, PromptCountRequest
from ridgeline.serve.http.protocol.token_usage import PromptDetails, TokenUsage
from ridgeline.serve.http.reply import (
    StreamShape,
    json_response,
    record_of,
    respond,
    service_of,
)
from ridgeline.serve.http.reply_parts import PartStep, ReplyPart, ReplyParts
from ridgeline.serve.http.routes.chat import begin_chat, chat_of, chat_prompt
from ridgeline.serve.http.service import Service
from ridgeline.serve.messages import Delta

router = APIRouter()
Event = dict[str, Any]
Asked = TypeVar("Asked", bound=MessagesRequest)


@router.post("/v1/messages")
async def messages(request: Request, body: MessagesRequest) -> Response:
    """Answer a conversation in blocks, whole or as a stream of named events."""
    service, record = service_of(request), record_of(request)
    record.without_effect = body.without_effect
    with renaming(NAMES):
        body, edits = await _edited(service, body)
        asked = chat_of(chat_fields(body, service.text.template.text))
        begun = await begin_chat(service, record, asked)
    writer = _Message(begun, edits)
    shape = StreamShape(named=True, failure=_failure)
    with renaming(NAMES):
        return await respond(request, [begun.submit], writer, stream=body.stream, shape=shape)


@router.post("/v1/messages/count_tokens")
async def count_tokens(request: Request, body: PromptCountRequest) -> Response:
    """Count the tokens of a conversation that is not answered."""
    service = service_of(request)
    with renaming(NAMES):
        left, edits = await _edited(service, body)
        found: Event = {"input_tokens": await _count(service, left)}
        if edits is not None:
            before = await _count(service, body) if edits else found["input_tokens"]
            found["context_management"] = {"original_input_tokens": before}
    return json_response(found)


async def _edited(service: Service, body: Asked) -> tuple[Asked, list[Event] | None]:
    """The request as its edits leave it, and these; None where none is asked for."""
    if body.context_management is None:
        return body, None

    def count(turns: list[Turn]) -> Awaitable[int]:
        return _count(service, body.model_copy(update={"messages": turns}))

    turns, edits = await edited(body.messages, body.context_management, count)
    return body.model_copy(update={"messages": turns}), edits


async def _count(service: Service, body: MessagesRequest) -> int:
    """The tokens of the prompt."""
    return len(await chat_prompt(service, chat_of(chat_fields(body, service.text.template.text))))


@router.post("/v1beta/models/count-tokens:rawPredict")
async def vertex_count(request: Request, body: dict[str, Any]) -> Response:
    """Count as Vertex's clients ask for it."""
    return await count_tokens(request, _read(PromptCountRequest, body))


@router.post("/v1beta/models/{name:path}:rawPredict")
@router.post("/v1beta/models/{name:path}:streamRawPredict")
async def vertex_messages(request: Request, name: str, body: dict[str, Any]) -> Response:
    """Answer a conversation as Vertex's clients ask for it, whose address names the model."""
    return await messages(request, _read(MessagesRequest, {**body, "model": name}))


def _read(shape: type[Asked], body: dict[str, Any]) -> Asked:
    said = {key: value for key, value in body.items() if key != "anthropic_version"}
    try:
        return shape.model_validate(said)
    except ValidationError as error:
        wrong = [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
        raise RequestValidationError(wrong) from None


def _failure(error: ApiError) -> Event:
    """The last event of a stream that an error ends."""
    detail = error.message_body.error
    return {"type": "error", "error": {"type": detail.type, "message": detail.message}}


class _Message:
    """Writes the message, whole or as events; a `reply.ReplyWriter`."""

    def __init__(self, chat: BegunChat, edits: list[Event] | None) -> None:
        self._chat = chat
        self._edits = edits
        self._reply = ReplyParts(chat.choices[0])
        self._id = f"msg_{uuid.uuid4().hex[:24]}"

    def add(self, position: int, delta: Delta) -> None:
        for _ in self.chunks(position, delta):
            pass

    def whole(self, usage: TokenUsage) -> Event:
        blocks = [_block(part) for part in self._reply.parts]
        return {**self._document(usage), "content": blocks, **self._end(), **self._managed()}

    def opening(self) -> Iterator[Event]:
        prompt = len(self._chat.submit.prompt)  # what is cached of it is known at the end
        usage = TokenUsage(
            prompt_tokens=prompt,
            completion_tokens=0,
            total_tokens=prompt,
            prompt_tokens_details=PromptDetails(cached_tokens=0),
        )
        yield {"type": "message_start", "message": self._document(usage)}

    def chunks(self, position: int, delta: Delta) -> Iterator[Event]:  # noqa: ARG002  one prompt
        for step in self._reply.take(delta):
            place = {"index": step.part.index}
            match step.what:
                case "began":
                    block = _empty_block(step.part)
                    yield {"type": "content_block_start", **place, "content_block": block}
                case "grew":
                    yield {"type": "content_block_delta", **place, "delta": _growth(step)}
                case "over":
                    yield {"type": "content_block_stop", **place}

    def closing(self, usage: TokenUsage) -> Iterator[Event]:
        told = {"delta": self._end(), "usage": _usage(usage), **self._managed()}
        yield {"type": "message_delta", **told}
        yield {"type": "message_stop"}

    def _document(self, usage: TokenUsage) -> Event:
        """The message before anything is said."""
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._chat.body.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(usage),
        }

    def _managed(self) -> Event:
        """The edits of the conversation, where some were asked for."""
        if self._edits is None:
            return {}
        return {"context_management": {"applied_edits": self._edits}}

    def _end(self) -> Event:
        """Why it ended, and at which of the asked for sequences."""
        chat = self._reply.chat
        asked = self._chat.body.stop or []
        if chat.finish_reason == "stop" and chat.stop_reason in asked:
            return {"stop_reason": "stop_sequence", "stop_sequence": chat.stop_reason}
        reason = {"length": "max_tokens", "tool_calls": "tool_use"}.get(chat.finish_reason or "")
        return {"stop_reason": reason or "end_turn", "stop_sequence": None}


def _usage(usage: TokenUsage) -> Event:
    """The counts; tokens that were cached are not among the input's, as that API has it."""
    cached = usage.prompt_tokens_details.cached_tokens
    return {
        "input_tokens": usage.prompt_tokens - cached,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
    }


def _empty_block(part: ReplyPart) -> Event:
    if part.kind == "thought":
        return {"type": "thinking", "thinking": "", "signature": ""}
    if part.kind == "text":
        return {"type": "text", "text": ""}
    return {"type": "tool_use", "id": part.call_id, "name": part.name, "input": {}}


def _block(part: ReplyPart) -> Event:
    block = _empty_block(part)
    if part.kind == "call":
        return {**block, "input": _input(part.text)}
    return {**block, "thinking" if part.kind == "thought" else "text": part.text}


def _input(text: str) -> Any:
    """A call's arguments as an object; of a call that was cut off, what came whole.

    It is what clients make of the pieces of a stream that ends there.

    >>> _input('{"a": 1, "b": [2, 3], "c": 4')
    {'a': 1, 'b': [2, 3], 'c': 4}
    """
    try:
        found = from_json(text, allow_partial=True)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _growth(step: PartStep) -> Event:
    match step.part.kind:
        case "thought":
            return {"type": "thinking_delta", "thinking": step.text}
        case "text":
            return {"type": "text_delta", "text": step.text}
        case "call":
            return {"type": "input_json_delta", "partial_json": step.text}
