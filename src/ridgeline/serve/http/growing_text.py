"""Completions of texts as they grow, and how they are told: whole, or as the chunks of a stream."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from msgspec import UNSET
from msgspec.structs import replace

from ridgeline.serve.http.metrics import CompletionTimer
from ridgeline.serve.http.protocol.completions import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
)
from ridgeline.serve.http.protocol.fields import LOWEST_LOGPROB
from ridgeline.serve.http.protocol.token_usage import TokenUsage
from ridgeline.serve.http.text import TextTokens, TokenReport, prompt_logprobs_of
from ridgeline.serve.messages import Delta, Logprob, TokenLogprobs


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """One prompt of a request."""

    tokens: tuple[int, ...]
    text: str
    """The prompt's text, for `echo`."""


@dataclass(slots=True)
class GrowingText:
    """One completion as it grows."""

    index: int
    body: CompletionRequest
    prompt: TextPrompt
    text: TextTokens
    timer: CompletionTimer
    report: TokenReport
    position: int
    """The number of its prompt."""
    written: str = ""
    shown: str = ""
    """What `written` had when the last chunk was made."""
    found: list[TokenLogprobs] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    num_new: int = 0
    """Entries of `found` that are not the prompt's."""
    num_shown: int = 0
    """Entries of `found` that chunks have shown already."""
    ids: list[int] = field(default_factory=list)
    """The ids that no chunk has shown yet."""
    of_prompt: tuple[TokenLogprobs, ...] = ()
    began: bool = False
    asked: bool = False
    """Whether `choice` was called."""
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def take(self, delta: Delta, prompt_logprobs: tuple[TokenLogprobs, ...]) -> None:
        """Grow by what the engine said; the prompt's log-probabilities come once."""
        self.timer.note(delta)
        if self.body.echo and not self.began:
            self.written += self.prompt.text
            if self.body.logprobs is not None:
                self.found.extend(prompt_logprobs)
                self.pieces.extend(self.text.pieces(self.prompt.tokens))
        self.of_prompt = self.of_prompt or prompt_logprobs
        self.began = True
        if self.body.max_tokens != 0:  # with 0, one token was asked for and nobody wants it
            self.ids.extend(delta.tokens)
            self.written += delta.text
            self.found.extend(delta.logprobs)
            self.num_new += len(delta.logprobs)
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
            logprobs = _completion_logprobs(
                self.report.named(self.found[start:]),
                self.pieces[start:],
                self.report.name(self.prompt.tokens[0], self.pieces[0]) if self.pieces else "",
                offset,
                self.body.logprobs,
            )
        first = not self.asked
        ids, self.ids, self.asked = self.ids, [], True
        self.shown, self.num_shown = self.written, len(self.found)
        return CompletionChoice(
            index=self.index,
            text=text,
            token_ids=self.report.ids(ids),
            prompt_token_ids=self.report.prompt_ids(self.position) if first else UNSET,
            prompt_logprobs=prompt_logprobs_of(self.of_prompt, self.body.prompt_logprobs),
            logprobs=logprobs,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )

    @property
    def mean_logprob(self) -> float:
        """The mean of its own tokens' log-probabilities, which were asked for."""
        drawn = self.found[len(self.found) - self.num_new :]
        found = [one.chosen.logprob for one in drawn if one.chosen is not None]
        return sum(found) / max(1, len(found))

    @property
    def has_news(self) -> bool:
        """Whether a chunk would show anything."""
        return (
            self.finish_reason is not None
            or len(self.written) > len(self.shown)
            or (self.report.ids_wanted and bool(self.ids))
            or (self.body.logprobs is not None and len(self.found) > self.num_shown)
        )


class CompletionWriter:
    """Writes the completions, whole or as chunks; a `reply.ReplyWriter`."""

    def __init__(
        self,
        body: CompletionRequest,
        request_id: str,
        texts: list[GrowingText],
        report: TokenReport,
    ) -> None:
        self._body = body
        self._report = report
        self._id = request_id
        self._texts = texts
        self._created = int(time.time())
        self._prompt_logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}

    def add(self, position: int, delta: Delta) -> None:
        """Take what the engine said of one prompt."""
        if delta.prompt_logprobs:  # they come with completion 0, for all completions to the prompt
            self._prompt_logprobs[position] = delta.prompt_logprobs
        self._report.take(delta)
        self._text(position, delta).take(delta, self._prompt_logprobs.get(position, ()))

    def whole(self, usage: TokenUsage) -> Completion:
        """The reply that is not streamed."""
        texts = self._likeliest() if self._body.is_ranked else self._texts
        choices = [replace(text.choice(), index=index) for index, text in enumerate(texts)]
        return self._completion(choices, self._cut(usage))

    def opening(self) -> Iterator[Completion]:
        """No chunk comes before the first text."""
        return iter(())

    def chunks(self, position: int, delta: Delta) -> Iterator[Completion]:
        """What a delta adds to the stream."""
        self.add(position, delta)
        text = self._text(position, delta)
        if text.has_news:
            usage = self._report.usage()
            yield self._completion([text.choice()], usage and self._cut(usage))

    def closing(self, usage: TokenUsage) -> Iterator[Completion]:
        """The last chunk, which says the usage where it is asked for."""
        if self._body.usage_in_stream:
            yield self._completion([], self._cut(usage))

    def _likeliest(self) -> list[GrowingText]:
        """The completions that come back where more were drawn, each prompt's likeliest first."""
        drawn, wanted = self._body.num_drawn, self._body.n or 1
        kept: list[GrowingText] = []
        for first in range(0, len(self._texts), drawn):
            group = self._texts[first : first + drawn]
            kept += sorted(group, key=lambda text: text.mean_logprob, reverse=True)[:wanted]
        return kept

    def _text(self, position: int, delta: Delta) -> GrowingText:
        return self._texts[position * self._body.num_drawn + delta.index]

    def _completion(self, choices: list[CompletionChoice], usage: TokenUsage | None) -> Completion:
        return Completion(
            id=self._id,
            created=self._created,
            model=self._body.model,
            choices=choices,
            usage=usage,
        )

    def _cut(self, usage: TokenUsage) -> TokenUsage:
        """The token counts without the tokens that nobody asked for."""
        if self._body.max_tokens != 0:
            return usage
        return TokenUsage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=0,
            total_tokens=usage.prompt_tokens,
            prompt_tokens_details=usage.prompt_tokens_details,
        )


def _completion_logprobs(
    found: Iterable[TokenLogprobs], texts: Iterable[str], first: str, offset: int, num_top: int
) -> CompletionLogprobs:
    """Log-probabilities with the `texts` of their tokens, the first `offset` characters in.

    The prompt's `first` token has no log-probability to be named in.
    """
    offsets, chosen, tokens, tops = [], [], [], []
    for one, text in zip(found, texts, strict=True):
        offsets.append(offset)
        offset += len(text)
        tokens.append(first if one.chosen is None else one.chosen.text)
        chosen.append(None if one.chosen is None else max(one.chosen.logprob, LOWEST_LOGPROB))
        tops.append(None if one.chosen is None else _by_text(one.chosen, one.top[:num_top]))
    return CompletionLogprobs(
        text_offset=offsets, token_logprobs=chosen, tokens=tokens, top_logprobs=tops
    )


def _by_text(chosen: Logprob, top: tuple[Logprob, ...]) -> dict[str, float]:
    return {one.text: max(one.logprob, LOWEST_LOGPROB) for one in (*top, chosen)}
