"""The endpoint of Cohere's API, `/v2/chat`: a chat in other words.

Its stream has events with names: the message, its contents and calls, and what each grows by.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ridgeline.serve.http.growing_chat import BegunChat
from ridgeline.serve.http.protocol.cohere_chat import NAMES, CohereChatRequest
from ridgeline.serve.http.protocol.errors import ApiError, renaming
from ridgeline.serve.http.protocol.fields import LOWEST_LOGPROB
from ridgeline.serve.http.protocol.token_usage import TokenUsage
from ridgeline.serve.http.reply import StreamShape, record_of, respond, service_of
from ridgeline.serve.http.reply_parts import PartStep, ReplyPart, ReplyParts
from ridgeline.serve.http.routes.chat import begin_chat, chat_of
from ridgeline.serve.messages import Delta, TokenLogprobs

router = APIRouter()
Event = dict[str, Any]


@router.post("/v2/chat")
async def cohere_chat(request: Request, body: CohereChatRequest) -> Response:
    """Answer a conversation, whole or as a stream of named events."""
    record = record_of(request)
    record.without_effect = body.without_effect
    with renaming(NAMES):
        begun = await begin_chat(service_of(request), record, chat_of(body.chat_fields()))
    writer = _CohereChat(begun)
    shape = StreamShape(named=True, failure=_failure)
    with renaming(NAMES):
        return await respond(request, [begun.submit], writer, stream=body.stream, shape=shape)


def _failure(error: ApiError) -> Event:
    """The last event of a stream that an error ends."""
    delta = {"finish_reason": "ERROR", "error": str(error)}
    return {"type": "message-end", "delta": delta}


class _CohereChat:
    """Writes the message, whole or as events; a `reply.ReplyWriter`."""

    def __init__(self, chat: BegunChat) -> None:
        self._chat = chat
        self._reply = ReplyParts(chat.choices[0])

    def add(self, position: int, delta: Delta) -> None:
        for _ in self.chunks(position, delta):
            pass

    def whole(self, usage: TokenUsage) -> Event:
        message: Event = {"role": "assistant"}
        calls = [_call(part) for part in self._reply.parts if part.kind == "call"]
        said = [_content(part.kind, part.text) for part in self._reply.parts if part.kind != "call"]
        if calls:
            message["tool_calls"] = calls
        if said:
            message["content"] = said
        found: Event = {"id": self._chat.submit.id, "message": message, **self._end(usage)}
        if self._reply.chat.num_top is not None:
            texts = (part for part in self._reply.parts if part.kind == "text")
            found["logprobs"] = [_logprobs([one]) for part in texts for one in part.logprobs]
        return found

    def opening(self) -> Iterator[Event]:
        lists: Event = {"content": [], "tool_calls": [], "citations": []}
        message = {"role": "assistant", "tool_plan": "", **lists}
        yield {
            "type": "message-start",
            "id": self._chat.submit.id,
            "delta": {"message": message},
        }

    def chunks(self, position: int, delta: Delta) -> Iterator[Event]:  # noqa: ARG002  one prompt
        for step in self._reply.take(delta):
            yield self._told(step)

    def closing(self, usage: TokenUsage) -> Iterator[Event]:
        yield {"type": "message-end", "delta": self._end(usage)}

    def _told(self, step: PartStep) -> Event:
        part = step.part
        of_calls = part.kind == "call"
        same = [one for one in self._reply.parts if (one.kind == "call") == of_calls]
        noun = "tool-call" if of_calls else "content"
        event: Event = {"index": same.index(part)}
        match step.what, of_calls:
            case "began", True:
                event |= {"delta": {"message": {"tool_calls": _call(part)}}}
            case "began", False:
                event |= {"delta": {"message": {"content": _content(part.kind, "")}}}
            case "grew", True:
                arguments = {"function": {"arguments": step.text}}
                event |= {"delta": {"message": {"tool_calls": arguments}}}
            case "grew", False:
                name = "thinking" if part.kind == "thought" else "text"
                event |= {"delta": {"message": {"content": {name: step.text}}}}
                if self._reply.chat.num_top is not None and step.logprobs:
                    event["logprobs"] = _logprobs(step.logprobs)
        kind = {"began": "start", "grew": "delta", "over": "end"}[step.what]
        return {"type": f"{noun}-{kind}", **event}

    def _end(self, usage: TokenUsage) -> Event:
        """Why it ended, and what it took."""
        chat = self._reply.chat
        asked = self._chat.body.stop or []
        reason = {"length": "MAX_TOKENS", "tool_calls": "TOOL_CALL"}.get(chat.finish_reason or "")
        if chat.finish_reason == "stop" and chat.stop_reason in asked:
            reason = "STOP_SEQUENCE"
        counts = {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
        return {
            "finish_reason": reason or "COMPLETE",
            "usage": {
                "billed_units": counts,
                "tokens": counts,
                "cached_tokens": usage.prompt_tokens_details.cached_tokens,
            },
        }


def _content(kind: str, text: str) -> Event:
    name = "thinking" if kind == "thought" else "text"
    return {"type": name, name: text}


def _call(part: ReplyPart) -> Event:
    function = {"name": part.name, "arguments": part.text}
    return {"id": part.call_id, "type": "function", "function": function}


def _logprobs(found: Iterable[TokenLogprobs]) -> Event:
    """Tokens in a row and their log-probabilities."""
    chosen = [one.chosen for one in found if one.chosen is not None]
    return {
        "text": "".join(one.text for one in chosen),
        "token_ids": [one.token for one in chosen],
        "logprobs": [max(one.logprob, LOWEST_LOGPROB) for one in chosen],
    }
