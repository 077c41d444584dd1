"""The endpoint of OpenAI's newer API, `/v1/responses`: a chat in other words.

Its stream has events with names: the response, its items, their parts, and what each grows by.
"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ridgeline.serve.http.background import BackgroundResponses, ResponseEvents
from ridgeline.serve.http.growing_chat import BegunChat, chat_logprobs
from ridgeline.serve.http.protocol.errors import ApiError, refused, renaming
from ridgeline.serve.http.protocol.response_items import InputItem
from ridgeline.serve.http.protocol.responses import ResponsesRequest
from ridgeline.serve.http.protocol.token_usage import TokenUsage
from ridgeline.serve.http.reply import StreamShape, json_response, record_of, respond, service_of
from ridgeline.serve.http.reply_parts import PartStep, ReplyPart, ReplyParts
from ridgeline.serve.http.response_request import NAMES, chat_fields, continued, listed
from ridgeline.serve.http.routes.chat import begin_chat, chat_of, chat_prompt
from ridgeline.serve.http.routes.conversations import add_said, said_before
from ridgeline.serve.http.routes.kept_responses import followed, keep, previous, replace
from ridgeline.serve.messages import Delta, TokenLogprobs

router = APIRouter()
Event = dict[str, Any]
Keep = Callable[[Event, list[Event]], bool]
"""Keeps a response and what it answers; False where it is too long for that."""


@router.post("/v1/responses")
async def responses(request: Request, body: ResponsesRequest) -> Response:
    """Answer a text or a conversation, whole or as a stream of named events."""
    record = record_of(request)
    record.without_effect = body.without_effect
    new = body.items
    body = continued(body, _before(request, body))
    with renaming(NAMES):
        begun = await begin_chat(service_of(request), record, chat_of(chat_fields(body)))
    writer = _Response(body, begun, functools.partial(keep, request))
    if body.conversation is not None:
        writer.add_to(functools.partial(add_said, request, body.conversation.id), new)
    if body.background:
        return _in_background(request, begun, writer)
    shape = StreamShape(named=True, failure=writer.failure)
    with renaming(NAMES):
        return await respond(request, [begun.submit], writer, stream=body.stream, shape=shape)


def _before(request: Request, body: ResponsesRequest) -> list[Event]:
    """The items that a request goes on from. Raises ApiError where they are not kept."""
    name = None if body.conversation is None else body.conversation.id
    return said_before(request, name) or previous(request, body.previous_response_id)


def _in_background(request: Request, begun: BegunChat, writer: _Response) -> Response:
    """Answer at once that a response is queued, or with its events, and have it computed."""
    queued = writer.queued()
    log = ResponseEvents() if writer.streams else None
    waiting = _Background(writer, functools.partial(replace, request), log)
    background: BackgroundResponses = request.app.state.background
    service, record = service_of(request), record_of(request)
    background.begin(queued["id"], service, begun.submit, record, waiting, log)
    return json_response(queued) if log is None else followed(log)


@router.post("/v1/responses/input_tokens")
async def input_tokens(request: Request, body: ResponsesRequest) -> Response:
    """How many tokens the model would be given."""
    record = record_of(request)
    record.without_effect = body.without_effect
    body = continued(body, _before(request, body))
    with renaming(NAMES):
        prompt = await chat_prompt(service_of(request), chat_of(chat_fields(body)))
    record.prompt_tokens = len(prompt)
    return json_response({"object": "response.input_tokens", "input_tokens": len(prompt)})


class _Response:
    """Writes the response, whole or as events; a `reply.ReplyWriter`."""

    def __init__(self, body: ResponsesRequest, chat: BegunChat, keep: Keep) -> None:
        self._asked = body
        self._chat = chat
        self._keep = keep
        self._reply = ReplyParts(chat.choices[0])
        self._id = f"resp_{uuid.uuid4().hex}"
        self._ids: list[str] = []
        """The items' ids."""
        self._created = int(time.time())
        self._num_events = 0
        self._said: Callable[[list[Event]], None] | None = None

    def add_to(self, add: Callable[[list[Event]], None], new: list[InputItem]) -> None:
        """Add the request's own items and the answer's to a conversation when all has come."""
        asked = listed(new)
        self._said = lambda answer: add([*asked, *answer])

    def add(self, position: int, delta: Delta) -> None:
        for _ in self.chunks(position, delta):
            pass

    def whole(self, usage: TokenUsage) -> Event:
        return self._complete(usage)

    @property
    def streams(self) -> bool:
        """Whether the response is told in events."""
        return bool(self._asked.stream)

    def opening(self) -> Iterator[Event]:
        early = "queued" if self._asked.background else "in_progress"
        yield self._event("created", response=self._document(early))
        if early == "queued":
            yield self._event("queued", response=self._document(early))
        yield self._event("in_progress", response=self._document("in_progress"))

    def chunks(self, position: int, delta: Delta) -> Iterator[Event]:  # noqa: ARG002  one prompt
        for step in self._reply.take(delta):
            match step.what:
                case "began":
                    yield from self._begin(step.part)
                case "grew":
                    yield self._grow(step)
                case "over":
                    yield from self._end(step.part)

    def closing(self, usage: TokenUsage) -> Iterator[Event]:
        yield self._event(self._status, response=self._complete(usage))

    def failure(self, error: ApiError) -> Event:
        """The last event of a stream that an error ends."""
        detail = error.body.error
        said = {"code": str(detail.code), "message": detail.message, "param": detail.param}
        return {**self._event("error", **said), "type": "error"}

    def queued(self) -> Event:
        """The response before it is begun, which is kept. Raises ApiError where it is too long."""
        found = self._document("queued")
        if not self._keep(found, listed(self._asked.items)):
            raise refused("background: this conversation is too long to be kept", "background")
        return found

    def state(self, usage: TokenUsage | None, error: ApiError | None) -> Event:
        """The response as it is now: under way, complete, or ended by an error."""
        if error is not None:
            detail = error.body.error
            said = {"code": str(detail.code), "message": detail.message}
            return {**self._document("failed"), "error": said}
        return self._document("in_progress") if usage is None else self._over(usage)

    def ending(self, document: Event) -> Event:
        """The last event of a stream in the background, by the response as it ended."""
        return self._event(document["status"], response=document)

    def _complete(self, usage: TokenUsage) -> Event:
        """The response when all has come, which is kept unless that is not wanted."""
        found = self._over(usage)
        if found["store"]:
            found["store"] = self._keep(found, listed(self._asked.items))
        return found

    def _over(self, usage: TokenUsage) -> Event:
        """The response when all has come, which the conversation then has."""
        found = self._document(self._status, usage)
        if self._said is not None:
            self._said(found["output"])
        return found

    @property
    def _status(self) -> str:
        cut_off = self._reply.chat.finish_reason == "length"
        return "incomplete" if cut_off else "completed"

    def _begin(self, part: ReplyPart) -> Iterator[Event]:
        prefix = {"thought": "rs", "text": "msg", "call": "fc"}[part.kind]
        if self._is_custom(part):
            prefix = "ctc"
        self._ids.append(f"{prefix}_{uuid.uuid4().hex}")
        item = self._item(part, "in_progress")
        if part.kind != "call":
            item["content"] = []
        yield self._event("output_item.added", output_index=part.index, item=item)
        if part.kind != "call":
            yield self._event("content_part.added", **self._place(part), part=_content(part, []))

    def _grow(self, step: PartStep) -> Event:
        part, kind = step.part, self._kind(step.part)
        if part.kind == "call":
            where = {"item_id": self._ids[part.index], "output_index": part.index}
            return self._event(f"{kind}.delta", **where, delta=step.text)
        said: Event = {"delta": step.text}
        if part.kind == "text":
            said["logprobs"] = self._logprobs(step.logprobs)
        return self._event(f"{kind}.delta", **self._place(part), **said)

    def _end(self, part: ReplyPart) -> Iterator[Event]:
        kind, place = self._kind(part), self._place(part)
        if part.kind == "call":
            where = {"item_id": self._ids[part.index], "output_index": part.index}
            said = {"arguments": part.text, **self._asked.called(part.name)}
            if self._is_custom(part):
                said = {"input": part.text}
            yield self._event(f"{kind}.done", **where, **said)
        else:
            logprobs = self._logprobs(part.logprobs)
            more = {"logprobs": logprobs} if part.kind == "text" else {}
            yield self._event(f"{kind}.done", **place, text=part.text, **more)
            yield self._event("content_part.done", **place, part=_content(part, logprobs))
        last = part.index == len(self._reply.parts) - 1
        ended = self._reply.chat.finish_reason is not None
        item = self._item(part, self._status if last and ended else "completed")
        yield self._event("output_item.done", output_index=part.index, item=item)

    def _is_custom(self, part: ReplyPart) -> bool:
        """Whether it is a call of a custom tool."""
        return part.kind == "call" and self._reply.chat.kind(part.name) == "custom"

    def _kind(self, part: ReplyPart) -> str:
        """What its growth is called."""
        return "custom_tool_call_input" if self._is_custom(part) else _DELTAS[part.kind]

    def _place(self, part: ReplyPart) -> Event:
        item_id = self._ids[part.index]
        return {"item_id": item_id, "output_index": part.index, "content_index": 0}

    def _item(self, part: ReplyPart, status: str) -> Event:
        if self._is_custom(part):
            said = {"call_id": part.call_id, "name": part.name, "input": part.text}
            return {"id": self._ids[part.index], "type": "custom_tool_call", **said}
        item: Event = {"id": self._ids[part.index], "type": _ITEMS[part.kind], "status": status}
        if part.kind == "call":
            called = self._asked.called(part.name)
            return {**item, "call_id": part.call_id, **called, "arguments": part.text}
        content = [_content(part, self._logprobs(part.logprobs))]
        if part.kind == "thought":
            return {**item, "summary": [], "content": content}
        return {**item, "role": "assistant", "content": content}

    def _logprobs(self, found: tuple[TokenLogprobs, ...] | list[TokenLogprobs]) -> list[Any]:
        num_top = self._reply.chat.num_top
        return [] if num_top is None else list(chat_logprobs(found, num_top).content)

    def _event(self, kind: str, **fields: Any) -> Event:
        number = self._num_events
        self._num_events += 1
        return {"type": f"response.{kind}", "sequence_number": number, **fields}

    def _document(self, status: str, usage: TokenUsage | None = None) -> Event:
        """The response as far as it has come."""
        asked, body = self._asked, self._chat.body
        over = status not in ("queued", "in_progress")
        parts = self._reply.parts if over else []
        cut_off = status == "incomplete"
        output = [self._item(part, status if part is parts[-1] else "completed") for part in parts]
        return {
            "id": self._id,
            "object": "response",
            "background": bool(asked.background),
            "conversation": _plain(asked.conversation),
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut_off else None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "model": body.model,
            "output": output,
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": asked.previous_response_id,
            "reasoning": _plain(asked.reasoning) or {"effort": None, "summary": None},
            "store": asked.store is not False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": _plain(asked.text) or {"format": {"type": "text"}},
            **asked.told_tools,
            "top_logprobs": asked.top_logprobs or 0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": asked.truncation or "disabled",
            "usage": None if usage is None else self._usage(usage),
            "user": asked.user,
        }

    def _usage(self, usage: TokenUsage) -> Event:
        cached = usage.prompt_tokens_details.cached_tokens
        thought = self._reply.chat.reasoning_tokens
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": thought},
            "total_tokens": usage.total_tokens,
        }


class _Background:
    """Keeps the states of a response in the background; a `background.BackgroundWriter`."""

    def __init__(
        self, writer: _Response, replace: Callable[[Event], bool], log: ResponseEvents | None
    ) -> None:
        self._writer = writer
        self._replace = replace
        self._log = log
        self._wanted: bool | None = None
        self._tell(writer.opening())

    def add(self, position: int, delta: Delta) -> None:
        self._tell(self._writer.chunks(position, delta))

    def replace(self, usage: TokenUsage | None, error: ApiError | None = None) -> bool:
        if self._wanted and usage is None and error is None:
            return True  # that it is under way is known
        state = self._writer.state(usage, error)
        if usage is not None or error is not None:
            self._tell(iter((self._writer.ending(state),)))
        self._wanted = self._replace(state)
        return self._wanted

    def _tell(self, events: Iterator[Event]) -> None:
        """Write events down where they are; the response grows with them either way."""
        for event in events:
            if self._log is not None:
                self._log.add(_NAMED.event(event))


_NAMED = StreamShape(named=True)
_ITEMS = {"thought": "reasoning", "text": "message", "call": "function_call"}
"""The types of items by what they hold."""
_DELTAS = {"thought": "reasoning_text", "text": "output_text", "call": "function_call_arguments"}
"""The events that tell an item's growth."""


def _content(part: ReplyPart, logprobs: list[Any]) -> Event:
    """The only part of an item's content."""
    if part.kind == "thought":
        return {"type": "reasoning_text", "text": part.text}
    said = {"type": "output_text", "text": part.text, "annotations": []}
    return {**said, "logprobs": logprobs}


def _plain(given: Any) -> Any:
    """What the client asked, as it is told back."""
    dump = getattr(given, "model_dump", None)
    return given if dump is None else dump(exclude_none=True, by_alias=True)
