"""The endpoints of Ollama's API that answer: `/api/chat` and `/api/generate`.

Replies stream as lines of JSON unless `stream` is false. The last line says why the answer ended
and what it took.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ridgeline.serve.http.completion_request import begin_completions
from ridgeline.serve.http.growing_chat import BegunChat, chat_logprobs
from ridgeline.serve.http.growing_text import CompletionWriter
from ridgeline.serve.http.protocol.completions import CompletionRequest
from ridgeline.serve.http.protocol.errors import ApiError, renaming
from ridgeline.serve.http.protocol.ollama import (
    NAMES,
    OllamaChatRequest,
    OllamaFields,
    OllamaGenerateRequest,
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
from ridgeline.serve.http.routes.chat import begin_chat, chat_of
from ridgeline.serve.messages import Delta

router = APIRouter(prefix="/api")
Line = dict[str, Any]


@router.post("/chat")
async def chat(request: Request, body: OllamaChatRequest) -> Response:
    """Answer a conversation, line by line or whole."""
    if not body.messages:
        return _loaded(request, body, {"message": {"role": "assistant", "content": ""}})
    return await _answered(request, body, body.chat_fields(), of_chat=True)


@router.post("/generate")
async def generate(request: Request, body: OllamaGenerateRequest) -> Response:
    """Answer a prompt, or continue it as it stands, line by line or whole."""
    if not body.prompt and not body.as_it_stands:
        return _loaded(request, body, {"response": ""})
    if not body.as_it_stands:
        return await _answered(request, body, body.chat_fields(), of_chat=False)
    with renaming(NAMES):
        asked = CompletionRequest.model_validate(body.completion_fields())
        begun = await begin_completions(service_of(request), record_of(request), asked, usual=None)
    _name_hints(request, body)
    writer = _Continued(_Clock(record_of(request).model), begun.writer)
    with renaming(NAMES):
        return await respond(request, begun.submits, writer, stream=body.streams, shape=LINES)


async def _answered(
    request: Request, body: OllamaFields, fields: dict[str, Any], *, of_chat: bool
) -> Response:
    service, record = service_of(request), record_of(request)
    with renaming(NAMES):
        begun = await begin_chat(service, record, chat_of(fields))
    _name_hints(request, body)
    if body.think is True and service.text.thoughts is None:
        record.without_effect.append("think")
    writer = _Answer(_Clock(record.model), begun, of_chat=of_chat)
    with renaming(NAMES):
        return await respond(request, [begun.submit], writer, stream=body.streams, shape=LINES)


def _name_hints(request: Request, body: OllamaFields) -> None:
    record = record_of(request)
    record.without_effect = [*record.without_effect, *body.without_effect]


def _loaded(request: Request, body: OllamaFields, nothing: Line) -> Response:
    """The reply to a request that only wants the model to be there, or to be gone."""
    service = service_of(request)
    service.adapter(body.model)
    service.ready  # noqa: B018  raises while there is no engine
    model = service.name_of(body.model)
    why = "unload" if body.unloads else "load"
    return json_response(
        {"model": model, "created_at": now(), **nothing, "done": True, "done_reason": why}
    )


def now() -> str:
    """The time as Ollama's clients read it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _failure(error: ApiError) -> Line:
    """The last line of a stream that an error ends."""
    return {"error": str(error)}


LINES = StreamShape(lines=True, failure=_failure)


class _Clock:
    """What lines say of model and time."""

    def __init__(self, model: str) -> None:
        self.model = model
        self._began = time.monotonic_ns()
        self._first = 0

    def note(self) -> None:
        """A token has come."""
        self._first = self._first or time.monotonic_ns()

    def line(self, content: Line) -> Line:
        """A line before the last one."""
        return {"model": self.model, "created_at": now(), **content, "done": False}

    def last(self, content: Line, reason: str | None, usage: TokenUsage) -> Line:
        """The last line, or the only one."""
        ended = time.monotonic_ns()
        first = self._first or ended
        return {
            **self.line(content),
            "done": True,
            "done_reason": "length" if reason == "length" else "stop",
            "total_duration": ended - self._began,
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": first - self._began,
            "eval_count": usage.completion_tokens,
            "eval_duration": ended - first,
        }


class _Answer:
    """Writes an answer to a conversation or a prompt; a `reply.ReplyWriter`."""

    def __init__(self, clock: _Clock, chat: BegunChat, *, of_chat: bool) -> None:
        self._clock = clock
        self._of_chat = of_chat
        self._reply = ReplyParts(chat.choices[0])

    def add(self, position: int, delta: Delta) -> None:
        for _ in self.chunks(position, delta):
            pass

    def whole(self, usage: TokenUsage) -> Line:
        chat, parts = self._reply.chat, self._reply.parts
        calls = [
            call for one in parts if one.kind == "call" and (call := _call(one.name, one.text))
        ]
        content = self._content(chat.content, chat.reasoning, calls)
        if chat.num_top is not None:
            found = (one.logprobs for one in parts if one.kind == "text")
            texts = [token for tokens in found for token in tokens]
            content["logprobs"] = chat_logprobs(texts, chat.num_top).content
        return self._clock.last(content, chat.finish_reason, usage)

    def opening(self) -> Iterator[Line]:
        return iter(())

    def chunks(self, position: int, delta: Delta) -> Iterator[Line]:  # noqa: ARG002  one prompt
        self._clock.note()
        for step in self._reply.take(delta):
            if (content := self._told(step)) is not None:
                yield self._clock.line(content)

    def closing(self, usage: TokenUsage) -> Iterator[Line]:
        yield self._clock.last(self._content("", "", []), self._reply.chat.finish_reason, usage)

    def _told(self, step: PartStep) -> Line | None:
        """What a step adds; a call comes when it is complete."""
        part = step.part
        if part.kind == "call":
            if step.what != "over" or (call := _call(part.name, part.text)) is None:
                return None
            return self._content("", "", [call])
        if step.what != "grew":
            return None
        thinks = part.kind == "thought"
        content = self._content("" if thinks else step.text, step.text if thinks else "", [])
        if step.logprobs and self._reply.chat.num_top is not None:
            content["logprobs"] = chat_logprobs(step.logprobs, self._reply.chat.num_top).content
        return content

    def _content(self, text: str, thoughts: str, calls: list[Line]) -> Line:
        thinking = {"thinking": thoughts} if thoughts else {}
        if not self._of_chat:
            return {"response": text, **thinking}
        called = {"tool_calls": calls} if calls else {}
        return {"message": {"role": "assistant", "content": text, **thinking, **called}}


class _Continued:
    """Writes what follows a text; a `reply.ReplyWriter`."""

    def __init__(self, clock: _Clock, texts: CompletionWriter) -> None:
        self._clock = clock
        self._texts = texts
        self._reason: str | None = None

    def add(self, position: int, delta: Delta) -> None:
        self._clock.note()
        self._texts.add(position, delta)

    def whole(self, usage: TokenUsage) -> Line:
        (choice,) = self._texts.whole(usage).choices
        return self._clock.last({"response": choice.text}, choice.finish_reason, usage)

    def opening(self) -> Iterator[Line]:
        return iter(())

    def chunks(self, position: int, delta: Delta) -> Iterator[Line]:
        self._clock.note()
        for found in self._texts.chunks(position, delta):
            for choice in found.choices:
                self._reason = choice.finish_reason or self._reason
                if choice.text:
                    yield self._clock.line({"response": choice.text})

    def closing(self, usage: TokenUsage) -> Iterator[Line]:
        yield self._clock.last({"response": ""}, self._reason, usage)


def _call(name: str, arguments: str) -> Line | None:
    """A call with its arguments as an object; None where the answer ends within them."""
    try:
        given = json.loads(arguments or "{}")
    except ValueError:
        return None
    return {"function": {"name": name, "arguments": given}} if isinstance(given, dict) else None
