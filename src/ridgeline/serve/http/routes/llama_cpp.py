"""llama.cpp's own endpoints, which editors ask: a text is continued, or filled in.

Every event of a stream has what is new; the last one has the counts, too. There is no end mark.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ridgeline.serve.http.completion_request import BegunCompletions, begin_completions
from ridgeline.serve.http.conversation import prompt_of
from ridgeline.serve.http.growing_text import CompletionWriter
from ridgeline.serve.http.protocol.completions import CompletionChoice, CompletionRequest
from ridgeline.serve.http.protocol.errors import ApiError, renaming
from ridgeline.serve.http.protocol.llama_cpp import (
    NAMES,
    LlamaCompletionRequest,
    LlamaInfillRequest,
    LlamaSampling,
    TemplateRequest,
)
from ridgeline.serve.http.protocol.token_usage import TokenUsage
from ridgeline.serve.http.reply import (
    StreamShape,
    json_response,
    record_of,
    respond,
    service_of,
)
from ridgeline.serve.messages import Delta

router = APIRouter()
Document = dict[str, Any]


@router.post("/completion")
async def completion(request: Request, body: LlamaCompletionRequest) -> Response:
    """Continue a text, or several."""
    return await _continued(request, body, body.completion())


@router.post("/infill")
async def infill(request: Request, body: LlamaInfillRequest) -> Response:
    """Write what stands between two texts; with `n_predict` 0 there is nothing to prepare here."""
    if body.n_predict == 0:
        record_of(request).without_effect = ["n_predict"]
        return json_response({"content": "", "stop": True, "stop_type": "limit", "tokens": []})
    return await _continued(request, body, body.completion())


@router.post("/apply-template")
async def apply_template(request: Request, body: TemplateRequest) -> Response:
    """Write a conversation as the model would see it."""
    text = service_of(request).text
    tokens, _ = await prompt_of(
        text,
        body.messages,
        body.tools or [],
        opens_turn=True,
        continues=False,
        variables=body.chat_template_kwargs or {},
        special=False,
    )
    return json_response({"prompt": await text.decode(tokens)})


@router.get("/props")
async def props(request: Request) -> Response:
    """The server's limits and its chat template."""
    service = service_of(request)
    return json_response(
        {
            "default_generation_settings": {"n_ctx": service.ready.max_length},
            "total_slots": 1,
            "model_alias": service.settings.model_name,
            "model_path": service.ready.model,
            "chat_template": service.text.template.text,
            "modalities": {"vision": service.ready.sees_images, "audio": False},
            "is_sleeping": False,
        }
    )


async def _continued(request: Request, body: LlamaSampling, asked: CompletionRequest) -> Response:
    service, record = service_of(request), record_of(request)
    with renaming(NAMES):
        begun = await begin_completions(service, record, asked, usual=None)
    record.without_effect += body.without_effect
    writer = _Continued(body, begun, service.settings.model_name)
    shape = StreamShape(marked=False, failure=_failure)
    with renaming(NAMES):
        return await respond(request, begun.submits, writer, stream=body.stream, shape=shape)


def _failure(error: ApiError) -> Document:
    """The last event of a stream that an error ends."""
    return {"error": {"code": error.status, "message": str(error), "type": "server_error"}}


class _Continued:
    """Writes the texts, whole or as events; a `reply.ReplyWriter`."""

    def __init__(self, body: LlamaSampling, begun: BegunCompletions, model: str) -> None:
        self._asked = body
        self._texts: CompletionWriter = begun.writer
        self._submits = begun.submits
        self._model = model
        self._began = time.monotonic()
        self._first: float | None = None
        self._lasts: dict[int, Delta] = {}

    def add(self, position: int, delta: Delta) -> None:
        self._texts.add(position, delta)
        self._note(position, delta)

    def whole(self, usage: TokenUsage) -> Any:
        told = [{**self._news(one), **self._end(one)} for one in self._texts.whole(usage).choices]
        return told[0] if len(told) == 1 else told

    def opening(self) -> Iterator[Document]:
        return iter(())

    def chunks(self, position: int, delta: Delta) -> Iterator[Document]:
        self._note(position, delta)
        for found in self._texts.chunks(position, delta):
            for one in found.choices:
                ends = self._end(one) if one.finish_reason is not None else {"stop": False}
                yield {**self._news(one), **ends}

    def closing(self, usage: TokenUsage) -> Iterator[Document]:  # noqa: ARG002  the last has it
        return iter(())

    def _note(self, position: int, delta: Delta) -> None:
        if self._first is None:
            self._first = time.monotonic()
        if delta.finish_reason is not None:
            self._lasts[position * self._submits[position].n + delta.index] = delta

    def _news(self, choice: CompletionChoice) -> Document:
        alone = self._asked.n_predict == 0
        told: Document = {
            "index": choice.index,
            "content": "" if alone else choice.text,
            "tokens": choice.token_ids if self._asked.return_tokens else [],
        }
        if choice.logprobs is not None:
            told["completion_probabilities"] = [
                {
                    "token": token,
                    "logprob": logprob,
                    "top_logprobs": [
                        {"token": text, "logprob": one} for text, one in (top or {}).items()
                    ],
                }
                for token, logprob, top in zip(
                    choice.logprobs.tokens,
                    choice.logprobs.token_logprobs,
                    choice.logprobs.top_logprobs,
                    strict=True,
                )
            ]
        return told

    def _end(self, choice: CompletionChoice) -> Document:
        """Why it ended, after how many tokens, and how long they took."""
        last = self._lasts[choice.index]
        word = choice.stop_reason if isinstance(choice.stop_reason, str) else ""
        kind = "limit" if choice.finish_reason == "length" else "word" if word else "eos"
        num_new = 0 if self._asked.n_predict == 0 else last.output_tokens
        return {
            "stop": True,
            "stop_type": kind,
            "stopping_word": word,
            "model": self._model,
            "id_slot": 0,
            "truncated": False,
            "tokens_predicted": num_new,
            "tokens_evaluated": last.prompt_tokens,
            "tokens_cached": last.prompt_tokens + num_new,
            "generation_settings": {},
            "timings": self._timings(last, num_new),
        }

    def _timings(self, last: Delta, num_new: int) -> Document:
        first = self._first or time.monotonic()
        prompt_ms = 1000 * (first - self._began)
        new_ms = 1000 * (time.monotonic() - first)
        num_prompt = last.prompt_tokens - last.cached_tokens
        return {
            "cache_n": last.cached_tokens,
            "prompt_n": num_prompt,
            "prompt_ms": prompt_ms,
            "prompt_per_second": 1000 * num_prompt / max(prompt_ms, 1e-3),
            "predicted_n": num_new,
            "predicted_ms": new_ms,
            "predicted_per_second": 1000 * num_new / max(new_ms, 1e-3),
        }
