"""The older endpoint of Cohere's API, `/v1/chat`: its stream has a line for each event."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.responses import Response

from ridgeline.serve.http.growing_chat import BegunChat
from ridgeline.serve.http.protocol.cohere_chat import NAMES, CohereChatRequest, as_newer
from ridgeline.serve.http.protocol.errors import ApiError, renaming
from ridgeline.serve.http.protocol.token_usage import TokenUsage
from ridgeline.serve.http.reply import StreamShape, record_of, respond, service_of
from ridgeline.serve.http.routes.chat import begin_chat, chat_of
from ridgeline.serve.messages import Delta

router = APIRouter()
Event = dict[str, Any]


@router.post("/v1/chat")
async def older_cohere_chat(request: Request, body: dict[str, Any]) -> Response:
    """Answer one message and what was said before it, whole or line by line."""
    try:
        asked = CohereChatRequest.model_validate(as_newer(body))
    except ValidationError as error:
        wrong = [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
        raise RequestValidationError(wrong) from None
    record = record_of(request)
    record.without_effect = asked.without_effect
    with renaming(NAMES):
        begun = await begin_chat(service_of(request), record, chat_of(asked.chat_fields()))
        shape = StreamShape(lines=True, failure=_failure)
        before = body.get("chat_history") or []
        writer = _OlderChat(begun, [*before, {"role": "USER", "message": body.get("message")}])
        return await respond(request, [begun.submit], writer, stream=asked.stream, shape=shape)


def _failure(error: ApiError) -> Event:
    """The last line of a stream that an error ends."""
    response = {"text": "", "finish_reason": "ERROR", "meta": {"warnings": [str(error)]}}
    return {"event_type": "stream-end", "finish_reason": "ERROR", "response": response}


class _OlderChat:
    """Writes the answer, whole or as lines; a `reply.ReplyWriter`."""

    def __init__(self, chat: BegunChat, said: list[Any]) -> None:
        self._chat = chat
        self._said = said
        self._growing = chat.choices[0]

    def add(self, position: int, delta: Delta) -> None:  # noqa: ARG002  a chat has one prompt
        self._growing.take(delta)

    def whole(self, usage: TokenUsage) -> Event:
        said = self._growing.content
        counts = {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
        return {
            "text": said,
            "generation_id": self._chat.submit.id,
            "response_id": self._chat.submit.id,
            "finish_reason": self._reason(),
            "chat_history": [*self._said, {"role": "CHATBOT", "message": said}],
            "meta": {"api_version": {"version": "1"}, "billed_units": counts, "tokens": counts},
        }

    def opening(self) -> Iterator[Event]:
        start = {"event_type": "stream-start", "generation_id": self._chat.submit.id}
        yield {"is_finished": False, **start}

    def chunks(self, position: int, delta: Delta) -> Iterator[Event]:  # noqa: ARG002  one prompt
        for piece in self._growing.take(delta):
            if piece.content:
                event = {"event_type": "text-generation", "text": piece.content}
                yield {"is_finished": False, **event}

    def closing(self, usage: TokenUsage) -> Iterator[Event]:
        end = {"event_type": "stream-end", "finish_reason": self._reason()}
        yield {"is_finished": True, **end, "response": self.whole(usage)}

    def _reason(self) -> str:
        """Tell why it ended, in that API's words."""
        asked = self._chat.body.stop or []
        if self._growing.finish_reason == "stop" and self._growing.stop_reason in asked:
            return "STOP_SEQUENCE"
        return "MAX_TOKENS" if self._growing.finish_reason == "length" else "COMPLETE"
