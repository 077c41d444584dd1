"""Texts that are continued, told in SGLang's words, whole or as the events of a stream.

Every event has all of the text so far, with its tokens.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from math import inf
from typing import Any

from ridgeline.serve.http.completion_request import BegunCompletions
from ridgeline.serve.http.protocol.fields import LOWEST_LOGPROB
from ridgeline.serve.http.protocol.sglang import SGLangRequest
from ridgeline.serve.http.protocol.token_usage import TokenUsage
from ridgeline.serve.http.text import TextTokens
from ridgeline.serve.messages import Delta, Logprob, TokenLogprobs

Document = dict[str, Any]
Line = tuple[Logprob | None, tuple[Logprob, ...]]
"""A token and the likeliest ones in its place."""
Entry = tuple[float | None, int, str | None]
"""A log-probability, a token's id, and its text where that is asked for."""


class _Growing:
    """One text as it grows."""

    def __init__(self, prompt_tokens: int) -> None:
        self.text = ""
        self.ids: list[int] = []
        self.found: list[TokenLogprobs] = []
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = 0
        self.reason: Document | None = None

    def take(self, delta: Delta, *, prompt_alone: bool) -> None:
        """Grow by what the engine said; of a prompt alone one token was computed for nobody."""
        if not prompt_alone:
            self.text += delta.text
            self.ids += delta.tokens
            self.found += delta.logprobs
        if delta.finish_reason == "length" or (delta.finish_reason and prompt_alone):
            self.reason = {"type": "length", "length": len(self.ids)}
        elif delta.finish_reason is not None:
            last = self.ids[-1] if self.ids else None
            matched = last if delta.stop_reason is None else delta.stop_reason
            self.reason = {"type": "stop", "matched": matched}
        self.cached_tokens = delta.cached_tokens


class SGLangWriter:
    """Writes the texts, whole or as events; a `reply.ReplyWriter`."""

    def __init__(self, body: SGLangRequest, begun: BegunCompletions, text: TextTokens) -> None:
        self._asked = body
        self._text = text
        self._began = time.monotonic()
        self._texts = begun.writer
        self._prompts: dict[int, tuple[TokenLogprobs, ...]] = {}
        self._submits = begun.submits
        self._growing = [
            _Growing(len(submit.prompt)) for submit in begun.submits for _ in range(submit.n)
        ]

    def add(self, position: int, delta: Delta) -> None:
        """Take what the engine said."""
        self._texts.add(position, delta)  # which times it
        if delta.prompt_logprobs:
            self._prompts[position] = delta.prompt_logprobs
        number = self._number(position, delta)
        self._growing[number].take(delta, prompt_alone=self._asked.asked.max_new_tokens == 0)

    def whole(self, usage: TokenUsage) -> Any:  # noqa: ARG002  each text has its own counts
        """The reply that is not streamed."""
        told = [self._document(number) for number in range(len(self._growing))]
        return told if self._asked.is_batch else told[0]

    def opening(self) -> Iterator[Document]:
        """No event comes before the first text."""
        return iter(())

    def chunks(self, position: int, delta: Delta) -> Iterator[Document]:
        """What a delta adds to the stream."""
        self.add(position, delta)
        number = self._number(position, delta)
        index = {"index": number} if self._asked.is_batch else {}
        yield {**self._document(number), **index}

    def closing(self, usage: TokenUsage) -> Iterator[Document]:  # noqa: ARG002  as above
        """The last text was the last event."""
        return iter(())

    def _number(self, position: int, delta: Delta) -> int:
        return position * self._submits[position].n + delta.index

    def _document(self, number: int) -> Document:
        one = self._growing[number]
        position = number // self._submits[0].n
        told: Document = {
            "id": self._asked.rid or self._submits[position].id,
            "finish_reason": one.reason,
            "prompt_tokens": one.prompt_tokens,
            "weight_version": "default",
            "completion_tokens": len(one.ids),
            "cached_tokens": one.cached_tokens,
            "e2e_latency": time.monotonic() - self._began,
        }
        if self._asked.return_logprob:
            told |= self._logprobs("output", [(line.chosen, line.top) for line in one.found])
            told |= self._logprobs("input", self._of_prompt(position))
        return {"text": one.text, "output_ids": one.ids, "meta_info": told}

    def _of_prompt(self, position: int) -> list[Line]:
        """The prompt's tokens that are asked for; the first is told without, as by SGLang."""
        if not self._asked.tells_prompt:
            return []
        start = self._asked.logprob_start_len or 0
        found = [(line.chosen, line.top) for line in self._prompts.get(position, ())[start:]]
        first = self._submits[position].prompt[start : start + 1]
        nameless = [Logprob(token, self._text.pieces(first)[0], -inf, 0) for token in first]
        return [*((one, ()) for one in nameless), *found[1:]]

    def _logprobs(self, kind: str, found: list[Line]) -> Document:
        told: Document = {f"{kind}_token_logprobs": [self._entry(one) for one, _ in found]}
        if wanted := self._asked.top_logprobs_num:
            tops = [[self._entry(one) for one in top[:wanted]] for _, top in found]
            told[f"{kind}_top_logprobs"] = tops
        return told

    def _entry(self, one: Logprob | None) -> Entry:
        assert one is not None  # only the prompt's first has none
        text = one.text if self._asked.return_text_in_logprobs else None
        known = one.rank > 0
        return max(one.logprob, LOWEST_LOGPROB) if known else None, one.token, text
