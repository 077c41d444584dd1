"""The endpoints of Hugging Face's text-generation-inference: a text is continued.

`/generate` tells it whole, `/generate_stream` token by token; the plain address does either, as
`stream` says, and has the whole one in a list. Its events have no end mark: the last has the text.
SGLang's clients ask `/generate`, too, in words of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request
from pydantic import Discriminator, Tag
from starlette.responses import Response

from ridgeline.serve.http.completion_request import begin_completions
from ridgeline.serve.http.growing_text import CompletionWriter
from ridgeline.serve.http.protocol.completions import Completion, CompletionChoice
from ridgeline.serve.http.protocol.errors import ApiError, renaming
from ridgeline.serve.http.protocol.generate import NAMES, GenerateRequest
from ridgeline.serve.http.protocol.sglang import NAMES as SGLANG_NAMES
from ridgeline.serve.http.protocol.sglang import SGLangRequest
from ridgeline.serve.http.protocol.token_usage import TokenUsage
from ridgeline.serve.http.reply import StreamShape, record_of, respond, service_of
from ridgeline.serve.http.sglang_reply import SGLangWriter
from ridgeline.serve.http.text import TextTokens
from ridgeline.serve.messages import Delta

router = APIRouter()
Event = dict[str, Any]


def _whose(body: Any) -> str:
    """Whose words a body is in."""
    given = body if isinstance(body, dict) else {}
    return "of SGLang" if given.keys() & {"text", "input_ids", "sampling_params"} else "of TGI"


EitherRequest = Annotated[
    Annotated[GenerateRequest, Tag("of TGI")] | Annotated[SGLangRequest, Tag("of SGLang")],
    Discriminator(_whose),
]


@router.post("/generate")
async def generate(request: Request, body: EitherRequest) -> Response:
    """Continue a text, told whole, or as SGLang tells it."""
    if isinstance(body, SGLangRequest):
        return await _continued_for_sglang(request, body)
    return await _continued(request, body, stream=False)


@router.post("/generate_stream")
async def generate_stream(request: Request, body: GenerateRequest) -> Response:
    """Continue a text, told token by token."""
    return await _continued(request, body, stream=True)


@router.post("/")
async def either(request: Request, body: GenerateRequest) -> Response:
    """Continue a text, in the way that the body asks for."""
    return await _continued(request, body, stream=bool(body.stream), listed=True)


async def _continued(
    request: Request, body: GenerateRequest, *, stream: bool, listed: bool = False
) -> Response:
    service = service_of(request)
    asked = body.completion(stream=stream)
    with renaming(NAMES):
        begun = await begin_completions(service, record_of(request), asked)
    writer = _Generated(body, begun.writer, service.text, listed=listed)
    shape = StreamShape(failure=_failure, marked=False)
    with renaming(NAMES):
        return await respond(request, begun.submits, writer, stream=stream, shape=shape)


async def _continued_for_sglang(request: Request, body: SGLangRequest) -> Response:
    service, record = service_of(request), record_of(request)
    with renaming(SGLANG_NAMES):
        begun = await begin_completions(service, record, body.completion())
        record.without_effect += [name for name in sorted(body.hints) if getattr(body, name)]
        writer = SGLangWriter(body, begun, service.text)
        return await respond(request, begun.submits, writer, stream=body.stream)


def _failure(error: ApiError) -> Event:
    """The last event of a stream that an error ends."""
    return {"error": str(error), "error_type": "generation"}


class _Generated:
    """Writes the text with its tokens, whole or as events; a `reply.ReplyWriter`."""

    def __init__(
        self, body: GenerateRequest, texts: CompletionWriter, text: TextTokens, *, listed: bool
    ) -> None:
        self._asked = body
        self._texts = texts
        self._text = text
        self._listed = listed
        self._written = ""
        self._num_tokens = 0

    def add(self, position: int, delta: Delta) -> None:
        self._texts.add(position, delta)

    def whole(self, usage: TokenUsage) -> Any:
        asked = self._asked.asked
        (choice,) = self._texts.whole(usage).choices
        found: Event = {"generated_text": self._full(choice.text)}
        if asked.details or asked.decoder_input_details:
            tokens = self._tokens(choice)
            found["details"] = {
                **self._end(choice, len(tokens)),
                "prefill": self._prefill(choice),
                "tokens": tokens,
            }
        return [found] if self._listed else found

    def opening(self) -> Iterator[Event]:
        return iter(())

    def chunks(self, position: int, delta: Delta) -> Iterator[Event]:
        for found in self._texts.chunks(position, delta):
            yield from self._events(found)

    def closing(self, usage: TokenUsage) -> Iterator[Event]:  # noqa: ARG002  the last one has it
        return iter(())

    def _events(self, found: Completion) -> Iterator[Event]:
        """One for each token; text that several tokens make stands with the last of them."""
        (choice,) = found.choices
        self._written += choice.text
        tokens = self._tokens(choice)
        for place, token in enumerate(tokens, 1):
            self._num_tokens += 1
            last = place == len(tokens)
            ends = last and choice.finish_reason is not None
            if not token["special"]:
                token["text"] = choice.text if last else ""
            yield {
                "index": self._num_tokens,
                "token": token,
                "generated_text": self._full(self._written) if ends else None,
                "details": self._end(choice, self._num_tokens) if ends else None,
            }

    def _full(self, text: str) -> str:
        return self._asked.inputs + text if self._asked.asked.return_full_text else text

    def _tokens(self, choice: CompletionChoice) -> list[Event]:
        assert choice.logprobs is not None
        ids = () if choice.token_ids is msgspec.UNSET else choice.token_ids
        special = self._text.special_ids
        rows = zip(ids, choice.logprobs.tokens, choice.logprobs.token_logprobs, strict=True)
        return [
            {"id": token, "text": text, "logprob": logprob, "special": token in special}
            for token, text, logprob in rows
        ]

    def _prefill(self, choice: CompletionChoice) -> list[Event]:
        """The prompt's tokens, where they are asked for; the first one has no log-probability."""
        if choice.prompt_logprobs is msgspec.UNSET or choice.prompt_token_ids is msgspec.UNSET:
            return []
        ids = choice.prompt_token_ids
        return [
            {"id": token, "text": text, "logprob": told and told[str(token)].logprob}
            for token, text, told in zip(
                ids, self._text.pieces(ids), choice.prompt_logprobs, strict=True
            )
        ]

    def _end(self, choice: CompletionChoice, num_tokens: int) -> Event:
        """Why it ended, and after how many tokens."""
        reason = "length" if choice.finish_reason == "length" else "eos_token"
        if isinstance(choice.stop_reason, str):
            reason = "stop_sequence"
        seed = self._asked.asked.seed
        return {"finish_reason": reason, "generated_tokens": num_tokens, "seed": seed}
