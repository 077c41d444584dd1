"""Log-probabilities as the two kinds of answers show them."""

from __future__ import annotations

from collections.abc import Iterable

from ridgeline.serve.http.protocol.chat import ChoiceLogprobs, ChosenLogprob, TokenLogprob
from ridgeline.serve.http.protocol.completions import CompletionLogprobs
from ridgeline.serve.messages import Logprob, TokenLogprobs

LOWEST = -9999.0
"""Instead of minus infinity, which JSON does not have; OpenAI's own figure."""


def chat_logprobs(found: Iterable[TokenLogprobs], num_top: int) -> ChoiceLogprobs:
    """For chats: the chosen token, and as many of the most likely as were asked for."""
    return ChoiceLogprobs(
        content=[
            ChosenLogprob(
                token=one.chosen.text,
                logprob=max(one.chosen.logprob, LOWEST),
                bytes=list(one.chosen.text.encode()),
                top_logprobs=[_plain(top) for top in one.top[:num_top]],
            )
            for one in found
            if one.chosen is not None
        ]
    )


def completion_logprobs(
    found: Iterable[TokenLogprobs], texts: Iterable[str], offset: int, num_top: int
) -> CompletionLogprobs:
    """For completions: `texts` of the tokens, the first of them `offset` characters in."""
    offsets, chosen, tokens, tops = [], [], [], []
    for one, text in zip(found, texts, strict=True):
        offsets.append(offset)
        offset += len(text)
        tokens.append(text)
        chosen.append(None if one.chosen is None else max(one.chosen.logprob, LOWEST))
        tops.append(None if one.chosen is None else _by_text(one.chosen, one.top[:num_top]))
    return CompletionLogprobs(
        text_offset=offsets, token_logprobs=chosen, tokens=tokens, top_logprobs=tops
    )


def _by_text(chosen: Logprob, top: tuple[Logprob, ...]) -> dict[str, float]:
    return {one.text: max(one.logprob, LOWEST) for one in (*top, chosen)}


def _plain(one: Logprob) -> TokenLogprob:
    return TokenLogprob(
        token=one.text, logprob=max(one.logprob, LOWEST), bytes=list(one.text.encode())
    )
