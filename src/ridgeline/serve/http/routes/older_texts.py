"""Older endpoints that continue a text: Anthropic's `/v1/complete` and Cohere's `/v1/generate`.

The text is continued as it stands, by whatever turns it is written in; no chat template is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ridgeline.serve.http.completion_request import BegunCompletions, begin_completions
from ridgeline.serve.http.protocol.completions import CompletionChoice
from ridgeline.serve.http.protocol.errors import ApiError, refused, renaming
from ridgeline.serve.http.protocol.older_texts import (
    NAMES,
    CompleteRequest,
    OlderTextRequest,
)
from ridgeline.serve.http.protocol.token_usage import TokenUsage
from ridgeline.serve.http.reply import StreamShape, record_of, respond, service_of
from ridgeline.serve.messages import Delta

router = APIRouter()
Event = dict[str, Any]


@router.post("/v1/complete")
async def complete(request: Request, body: CompleteRequest) -> Response:
    """Continue a text as Anthropic's older clients ask for it."""
    with renaming(NAMES):
        begun = await begin_completions(service_of(request), record_of(request), body.completion)
        shape = StreamShape(named=True, failure=_failure)
        writer = _Completed(begun, body)
        return await respond(request, begun.submits, writer, stream=body.stream, shape=shape)


@router.post("/v1/generate")
async def generate(request: Request, body: OlderTextRequest) -> Response:
    """Continue a text as Cohere's older clients ask for it, whole or line by line."""
    if body.stop_sequences and body.end_sequences:
        text = "stop_sequences stay in the text and end_sequences do not: give one of them"
        raise refused(text, "end_sequences")
    with renaming(NAMES):
        begun = await begin_completions(service_of(request), record_of(request), body.completion)
        shape = StreamShape(lines=True, failure=_generate_failure)
        writer = _Generated(begun, body)
        return await respond(request, begun.submits, writer, stream=body.stream, shape=shape)


def _failure(error: ApiError) -> Event:
    """The last event of a stream that an error ends."""
    detail = error.message_body.error
    return {"type": "error", "error": {"type": detail.type, "message": detail.message}}


def _generate_failure(error: ApiError) -> Event:
    """The last line of a stream that an error ends."""
    return {"is_finished": True, "event_type": "stream-error", "finish_reason": "ERROR",
            "err": str(error)}  # fmt: skip


class _Completed:
    """Writes one completion as Anthropic's older API does; a `reply.ReplyWriter`."""

    def __init__(self, begun: BegunCompletions, body: CompleteRequest) -> None:
        self._texts = begun.writer
        self._model = body.model
        self._id = begun.submits[0].id.replace("cmpl-", "compl_", 1).rpartition("-")[0]

    def add(self, position: int, delta: Delta) -> None:
        self._texts.add(position, delta)

    def whole(self, usage: TokenUsage) -> Event:
        return self._document(self._texts.whole(usage).choices[0])

    def opening(self) -> Iterator[Event]:
        return iter(())

    def chunks(self, position: int, delta: Delta) -> Iterator[Event]:
        for found in self._texts.chunks(position, delta):
            for choice in found.choices:
                yield self._document(choice)

    def closing(self, usage: TokenUsage) -> Iterator[Event]:  # noqa: ARG002  nothing tells it here
        return iter(())

    def _document(self, choice: CompletionChoice) -> Event:
        reason = {"stop": "stop_sequence", "length": "max_tokens"}.get(choice.finish_reason or "")
        stopped = choice.stop_reason if isinstance(choice.stop_reason, str) else None
        return {
            "type": "completion",
            "id": self._id,
            "completion": choice.text,
            "stop_reason": reason,
            "stop": stopped,
            "model": self._model,
        }


class _Generated:
    """Writes completions as Cohere's older API does; a `reply.ReplyWriter`."""

    def __init__(self, begun: BegunCompletions, body: OlderTextRequest) -> None:
        self._texts = begun.writer
        self._prompt = body.prompt
        self._id = begun.submits[0].id
        self._streamed = [""] * (body.num_generations or 1)
        self._reasons = ["COMPLETE"] * len(self._streamed)

    def add(self, position: int, delta: Delta) -> None:
        self._texts.add(position, delta)

    def whole(self, usage: TokenUsage) -> Event:
        counts = {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
        return {
            "id": self._id,
            "prompt": self._prompt,
            "generations": [self._generation(one) for one in self._texts.whole(usage).choices],
            "meta": {"api_version": {"version": "1"}, "billed_units": counts, "tokens": counts},
        }

    def opening(self) -> Iterator[Event]:
        return iter(())

    def chunks(self, position: int, delta: Delta) -> Iterator[Event]:
        for found in self._texts.chunks(position, delta):
            for one in found.choices:
                self._streamed[one.index] += one.text
                if one.finish_reason is not None:
                    self._reasons[one.index] = _reason(one)
                if one.text:
                    place = {"index": one.index} if len(self._streamed) > 1 else {}
                    event = {"event_type": "text-generation", "text": one.text, **place}
                    yield {**event, "is_finished": False}

    def closing(self, usage: TokenUsage) -> Iterator[Event]:  # noqa: ARG002  nothing tells it here
        generations = [
            {"id": f"{self._id}-{index}", "index": index, "text": text, "finish_reason": reason}
            for index, (text, reason) in enumerate(zip(self._streamed, self._reasons, strict=True))
        ]
        response = {"id": self._id, "prompt": self._prompt, "generations": generations}
        end = {"event_type": "stream-end", "finish_reason": self._reasons[0]}
        yield {"is_finished": True, **end, "response": response}

    def _generation(self, choice: CompletionChoice) -> Event:
        found: Event = {
            "id": f"{self._id}-{choice.index}",
            "index": choice.index,
            "text": choice.text,
            "finish_reason": _reason(choice),
        }
        if choice.logprobs is not None:
            pairs = zip(choice.logprobs.tokens, choice.logprobs.token_logprobs, strict=True)
            each = [{"token": token, "likelihood": one} for token, one in pairs]
            known = [one for one in choice.logprobs.token_logprobs if one is not None]
            found["likelihood"] = sum(known) / max(1, len(known))
            found["token_likelihoods"] = each
        return found


def _reason(choice: CompletionChoice) -> str:
    """Why a completion ended, in Cohere's older words."""
    if choice.finish_reason == "length":
        return "MAX_TOKENS"
    return "COMPLETE" if choice.stop_reason is None else "STOP_SEQUENCE"
