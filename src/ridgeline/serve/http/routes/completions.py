"""`/v1/completions`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from fastapi import APIRouter, Request
from starlette.responses import Response

from ridgeline.serve.http.exchange import respond
from ridgeline.serve.http.logprobs import completion_logprobs
from ridgeline.serve.http.metrics import AnswerTimer
from ridgeline.serve.http.protocol.completions import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    several,
)
from ridgeline.serve.http.protocol.errors import refused
from ridgeline.serve.http.protocol.usage import Usage
from ridgeline.serve.http.service import Service, new_id, record_of, service_of
from ridgeline.serve.http.text import TextTokens
from ridgeline.serve.messages import Delta, Submit, TokenLogprobs

USUAL_MAX_TOKENS = 16
"""OpenAI's."""
MOST_ANSWERS = 2048
"""Prompts times `n` of one request."""

router = APIRouter()


@dataclass(frozen=True, slots=True)
class _Prompt:
    tokens: tuple[int, ...]
    text: str
    """For `echo`."""


@router.post("/v1/completions")
async def completions(request: Request, body: CompletionRequest) -> Response:
    """Continue each prompt."""
    service, record = service_of(request), record_of(request)
    record.model, record.user = body.model, body.user
    _check(body)
    adapter = service.adapter(body.model)
    prompts = await _prompts(service.text, body)
    if len(prompts) * (body.n or 1) > MOST_ANSWERS:
        raise refused(f"more than {MOST_ANSWERS} answers in one request", "prompt")
    request_id = new_id("cmpl")
    submits = [
        _submit(service, body, prompt.tokens, f"{request_id}-{position}", adapter)
        for position, prompt in enumerate(prompts)
    ]
    answers = [
        _Answer(
            index=position * (body.n or 1) + index,
            body=body,
            prompt=prompt,
            text=service.text,
            timer=service.meters.timer(record),
        )
        for position, prompt in enumerate(prompts)
        for index in range(body.n or 1)
    ]
    return await respond(
        request, submits, _Completions(body, request_id, answers), stream=body.stream
    )


def _check(body: CompletionRequest) -> None:
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise refused("best_of must equal n; use_beam_search looks for the best", "best_of")
    if body.max_tokens == 0 and not body.echo:
        raise refused("max_tokens: 0 goes with echo only", "max_tokens")


async def _prompts(text: TextTokens, body: CompletionRequest) -> list[_Prompt]:
    found = []
    for one in several(body.prompt):
        if isinstance(one, str):
            tokens = await text.prompt(
                one, special=body.add_special_tokens is not False, param="prompt"
            )
            found.append(_Prompt(tokens, one))
        else:
            tokens = text.check(one, "prompt")
            found.append(_Prompt(tokens, await text.decode(tokens) if body.echo else ""))
    return found


def _submit(
    service: Service, body: CompletionRequest, prompt: tuple[int, ...], submit_id: str, adapter: str
) -> Submit:
    wanted = USUAL_MAX_TOKENS if body.max_tokens is None else max(1, body.max_tokens)
    sampling = body.sampling(
        max_tokens=service.room(prompt, wanted, "prompt"),
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
        grammar=body.grammar(),
        vocab=service.text.vocab,
    )
    return Submit(
        id=submit_id,
        prompt=prompt,
        sampling=sampling,
        n=body.n or 1,
        priority=body.priority or 0,
        adapter=adapter,
    )


@dataclass(slots=True)
class _Answer:
    """One answer as it grows."""

    index: int
    body: CompletionRequest
    prompt: _Prompt
    text: TextTokens
    timer: AnswerTimer
    written: str = ""
    shown: str = ""
    """What `written` had when the last chunk was made."""
    found: list[TokenLogprobs] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    num_shown: int = 0
    """Of `found`, in chunks already."""
    began: bool = False
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def take(self, delta: Delta, prompt_logprobs: tuple[TokenLogprobs, ...]) -> None:
        self.timer.note(delta)
        if self.body.echo and not self.began:
            self.written += self.prompt.text
            if self.body.logprobs is not None:
                self.found.extend(prompt_logprobs)
                self.pieces.extend(self.text.pieces(self.prompt.tokens))
        self.began = True
        if self.body.max_tokens != 0:  # with 0, one token was asked for and nobody wants it
            self.written += delta.text
            self.found.extend(delta.logprobs)
            self.pieces.extend(one.chosen.text for one in delta.logprobs if one.chosen is not None)
        if delta.finish_reason is not None:
            self.finish_reason = "length" if self.body.max_tokens == 0 else delta.finish_reason
            self.stop_reason = delta.stop_reason

    def choice(self) -> CompletionChoice:
        """All that no chunk has shown yet."""
        text, start = self.written[len(self.shown) :], self.num_shown
        offset = sum(len(piece) for piece in self.pieces[:start])
        logprobs: CompletionLogprobs | None = None
        if self.body.logprobs is not None:
            logprobs = completion_logprobs(
                self.found[start:], self.pieces[start:], offset, self.body.logprobs
            )
        self.shown, self.num_shown = self.written, len(self.found)
        return CompletionChoice(
            index=self.index,
            text=text,
            logprobs=logprobs,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )

    @property
    def has_news(self) -> bool:
        return (
            self.finish_reason is not None
            or len(self.written) > len(self.shown)
            or (self.body.logprobs is not None and len(self.found) > self.num_shown)
        )


class _Completions:
    """Writes the answers, whole or as chunks; an `exchange.Writer`."""

    def __init__(self, body: CompletionRequest, request_id: str, answers: list[_Answer]) -> None:
        self._body = body
        self._id = request_id
        self._answers = answers
        self._created = int(time.time())
        self._prompt_logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}

    def add(self, position: int, delta: Delta) -> None:
        if delta.prompt_logprobs:  # they come with answer 0, for all answers to the prompt
            self._prompt_logprobs[position] = delta.prompt_logprobs
        self._answer(position, delta).take(delta, self._prompt_logprobs.get(position, ()))

    def whole(self, usage: Usage) -> Completion:
        return self._completion([answer.choice() for answer in self._answers], self._cut(usage))

    def opening(self) -> Iterator[Completion]:
        return iter(())

    def chunks(self, position: int, delta: Delta) -> Iterator[Completion]:
        self.add(position, delta)
        answer = self._answer(position, delta)
        if answer.has_news:
            yield self._completion([answer.choice()], None)

    def closing(self, usage: Usage) -> Iterator[Completion]:
        if self._body.usage_in_stream:
            yield self._completion([], self._cut(usage))

    def _answer(self, position: int, delta: Delta) -> _Answer:
        return self._answers[position * (self._body.n or 1) + delta.index]

    def _completion(self, choices: list[CompletionChoice], usage: Usage | None) -> Completion:
        return Completion(
            id=self._id,
            created=self._created,
            model=self._body.model,
            choices=choices,
            usage=usage,
        )

    def _cut(self, usage: Usage) -> Usage:
        """Without the tokens that nobody asked for."""
        if self._body.max_tokens != 0:
            return usage
        return Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=0,
            total_tokens=usage.prompt_tokens,
            prompt_tokens_details=usage.prompt_tokens_details,
        )
