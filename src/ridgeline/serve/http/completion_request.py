"""From the request of a completion to the engine's, and to the texts that will grow."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.serve.http.access_log import RequestRecord
from ridgeline.serve.http.growing_text import CompletionWriter, GrowingText, TextPrompt
from ridgeline.serve.http.protocol.completions import CompletionRequest, several
from ridgeline.serve.http.protocol.errors import refused
from ridgeline.serve.http.reply import new_id
from ridgeline.serve.http.service import Service
from ridgeline.serve.http.text import TextTokens, TokenReport
from ridgeline.serve.messages import Submit

USUAL_MAX_TOKENS = 16
"""The default of `max_tokens`, as OpenAI has it."""
MOST_COMPLETIONS = 2048
"""Prompts times `n` of one request."""


@dataclass(frozen=True, slots=True)
class BegunCompletions:
    """Texts on their way to the engine, and what will take its deltas."""

    submits: list[Submit]
    writer: CompletionWriter


async def begin_completions(
    service: Service,
    record: RequestRecord,
    body: CompletionRequest,
    usual: int | None = USUAL_MAX_TOKENS,
) -> BegunCompletions:
    """What the engine is asked, and what will take its deltas. Raises ApiError.

    Args:
        service: What serves the model.
        record: What is remembered of the request.
        body: The request.
        usual: How many tokens come where none is said; None: as many as fit.
    """
    record.without_effect = body.without_effect
    record.user = body.user or body.safety_identifier
    record.metadata = body.metadata
    _check(body)
    body = service.with_defaults(body, record)
    adapter = service.adapter(body.model)
    prompts = await _prompts(service, body)
    forbidden = await service.text.forbidden(body.bad_words or [])
    if len(prompts) * body.num_drawn > MOST_COMPLETIONS:
        raise refused(f"more than {MOST_COMPLETIONS} answers in one request", "prompt")
    request_id = new_id("cmpl")
    submits = [
        _submit(service, body, prompt.tokens, f"{request_id}-{position}", adapter, forbidden, usual)
        for position, prompt in enumerate(prompts)
    ]
    report = TokenReport.of(body, submits)
    texts = [
        GrowingText(
            index=position * body.num_drawn + index,
            body=body,
            prompt=prompt,
            text=service.text,
            timer=service.meters.timer(record),
            report=report,
            position=position,
        )
        for position, prompt in enumerate(prompts)
        for index in range(body.num_drawn)
    ]
    return BegunCompletions(submits, CompletionWriter(body, request_id, texts, report))


def _check(body: CompletionRequest) -> None:
    if body.num_drawn < (body.n or 1):
        raise refused("best_of: at least as many as n", "best_of")
    if body.is_ranked and (body.stream or body.use_beam_search):
        other = "stream" if body.stream else "use_beam_search"
        raise refused(f"best_of above n does not go with {other}", "best_of")
    if body.suffix is not None and (body.echo or body.truncate_prompt_tokens is not None):
        raise refused("suffix goes with neither echo nor truncate_prompt_tokens", "suffix")
    if body.max_tokens == 0 and not body.echo:
        raise refused("max_tokens: 0 goes with echo only", "max_tokens")


async def _prompts(service: Service, body: CompletionRequest) -> list[TextPrompt]:
    text, found = service.text, []
    for one in several(body.prompt):
        if isinstance(one, str) and body.suffix is not None:
            tokens = await text.encode(one, special=False)
        elif isinstance(one, str):
            tokens = await text.prompt(
                one, special=body.add_special_tokens is not False, param="prompt"
            )
        else:
            tokens = text.check(one, "prompt")
        if body.suffix is not None:
            tokens = await _between(text, tokens, body)
        kept = service.cut(tokens, body.truncate_prompt_tokens, body.max_tokens)
        if isinstance(one, str) and len(kept) == len(tokens):
            shown = one
        else:
            shown = await text.decode(kept) if body.echo else ""
        found.append(TextPrompt(kept, shown))
    return found


async def _between(
    text: TextTokens, before: tuple[int, ...], body: CompletionRequest
) -> tuple[int, ...]:
    """The prompt that asks for what stands between a text and the request's suffix."""
    if text.infill is None:
        raise refused(
            "suffix: this model's tokenizer has no tokens for a text to be filled into", "suffix"
        )
    behind = await text.encode(body.suffix or "", special=False)
    first = () if body.add_special_tokens is False else await text.encode("", special=True)
    return (*first, *text.infill.prompt(before, behind))


def _submit(
    service: Service,
    body: CompletionRequest,
    prompt: tuple[int, ...],
    submit_id: str,
    adapter: str,
    forbidden: tuple[tuple[int, ...], ...],
    usual: int | None,
) -> Submit:
    marks = service.text.infill
    stops = () if body.suffix is None or marks is None else marks.stop_ids
    wanted = usual if body.max_tokens is None else max(1, body.max_tokens)
    sampling = body.sampling(
        max_tokens=service.room(prompt, wanted, "prompt"),
        logprobs=0 if body.is_ranked and body.logprobs is None else body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
        grammar=body.grammar(),
        vocab=service.text.vocab,
        forbidden=forbidden,
        stop_ids=stops,
    )
    return Submit(
        id=submit_id,
        prompt=prompt,
        sampling=sampling,
        n=body.num_drawn,
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        adapter=adapter,
    )
