"""What a reply says of tokens beside its text, in vLLM's form: ids, counts so far, prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from ridgeline.serve.http.protocol.fields import LOWEST_LOGPROB, SamplingFields
from ridgeline.serve.http.protocol.token_usage import PromptDetails, TokenUsage
from ridgeline.serve.messages import Delta, Logprob, Submit, TokenLogprobs


class PromptLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """The log-probability of a token at one place of the prompt."""

    logprob: float
    rank: int
    decoded_token: str


def prompt_logprobs_of(
    found: Sequence[TokenLogprobs], wanted: int | None
) -> list[dict[str, PromptLogprob] | None] | UnsetType:
    """By token id for each place of the prompt; its first token has none.

    Args:
        found: What the engine said.
        wanted: How many of the most likely ones beside the prompt's own; None: not asked for.
    """
    if wanted is None:
        return UNSET
    return [
        None
        if one.chosen is None
        else {
            str(entry.token): PromptLogprob(
                logprob=max(entry.logprob, LOWEST_LOGPROB),
                rank=entry.rank,
                decoded_token=entry.text,
            )
            for entry in (*one.top[:wanted], one.chosen)
        }
        for one in found
    ]


def _by_id(one: Logprob) -> Logprob:
    return Logprob(one.token, f"token_id:{one.token}", one.logprob, one.rank)


@dataclass(slots=True)
class TokenReport:
    """The tokens of one request so far, as far as it asks for them."""

    submits: Sequence[Submit]
    ids_wanted: bool
    continuous: bool
    """Whether every chunk says the usage so far."""
    names_by_id: bool = False
    """Whether log-probabilities name tokens by their ids."""
    num_new: int = 0

    @classmethod
    def of(cls, body: SamplingFields, submits: Sequence[Submit]) -> TokenReport:
        """What a request asks for."""
        options = body.stream_options
        return cls(
            submits=submits,
            ids_wanted=bool(body.return_token_ids),
            continuous=body.usage_in_stream and bool(options and options.continuous_usage_stats),
            names_by_id=bool(body.return_tokens_as_token_ids),
        )

    def take(self, delta: Delta) -> None:
        """Count the tokens that came."""
        self.num_new += len(delta.tokens)

    def prompt_ids(self, position: int = 0) -> tuple[int, ...] | UnsetType:
        """The prompt's token ids, where they are asked for."""
        return self.submits[position].prompt if self.ids_wanted else UNSET

    def ids(self, tokens: Sequence[int]) -> tuple[int, ...] | UnsetType:
        """A completion's token ids, where they are asked for."""
        return tuple(tokens) if self.ids_wanted else UNSET

    def named(self, found: Iterable[TokenLogprobs]) -> list[TokenLogprobs]:
        """Log-probabilities whose tokens are called as the request asks for it."""
        if not self.names_by_id:
            return list(found)
        return [
            TokenLogprobs(
                None if one.chosen is None else _by_id(one.chosen),
                tuple(_by_id(top) for top in one.top),
            )
            for one in found
        ]

    def name(self, token: int, text: str) -> str:
        """What a token is called as the request asks for it."""
        return f"token_id:{token}" if self.names_by_id else text

    def usage(self) -> TokenUsage | None:
        """The counts so far, where every chunk has them."""
        if not self.continuous:
            return None
        prompt = sum(len(submit.prompt) for submit in self.submits)
        return TokenUsage(
            prompt_tokens=prompt,
            completion_tokens=self.num_new,
            total_tokens=prompt + self.num_new,
            prompt_tokens_details=PromptDetails(cached_tokens=0),
        )
