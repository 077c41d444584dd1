"""Log-probabilities as they are reported: softmax of the raw logits, before anything else."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ridgeline.serve.messages import Logprob, TokenLogprobs
from ridgeline.serve.sampling.state import check_finite
from ridgeline.serve.sampling.text import Tokenizer


def token_logprobs(
    logits: Tensor, chosen: list[int], tops: list[int], tokenizer: Tokenizer | None
) -> list[TokenLogprobs]:
    """The log-probabilities of each row's token and of the most likely ones.

    A token's rank is 1 plus how many tokens are more likely, so equally likely ones share it.

    Args:
        logits: [R, V], raw.
        chosen: The token at each row's position.
        tops: How many of the most likely tokens each row reports besides.
        tokenizer: For the tokens' texts; None: they are empty.

    Raises:
        NotFinite: A row has NaN or infinities.
    """
    if not chosen:
        return []
    logprobs = logits.float().log_softmax(-1)
    ids = torch.tensor(chosen, device=logits.device)
    own = logprobs.gather(1, ids[:, None])
    check_finite(logprobs.amax(-1))
    ranks = ((logprobs > own).sum(-1) + 1).tolist()
    values, tokens = logprobs.topk(min(max(tops), logits.shape[1]), dim=-1)
    found = []
    for row, (token, logprob, rank, likely, likely_ids) in enumerate(
        zip(chosen, own[:, 0].tolist(), ranks, values.tolist(), tokens.tolist(), strict=True)
    ):
        top = tuple(
            Logprob(other, text_of(tokenizer, other), value, place)
            for place, (other, value) in enumerate(
                zip(likely_ids[: tops[row]], likely[: tops[row]], strict=True), start=1
            )
        )
        mine = Logprob(token, text_of(tokenizer, token), logprob, rank)
        found.append(TokenLogprobs(mine, top))
    return found


@lru_cache(maxsize=1 << 18)
def text_of(tokenizer: Tokenizer | None, token: int) -> str:
    """The token's text by itself, special tokens too."""
    if tokenizer is None:
        return ""
    return tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)


class PromptLogprobs:
    """The log-probabilities of one prompt, whose first token has none."""

    def __init__(self, prompt: tuple[int, ...], top: int, tokenizer: Tokenizer | None) -> None:
        self._prompt = prompt
        self._top = top
        self._tokenizer = tokenizer
        self._found: list[TokenLogprobs | None] = [None] * len(prompt)
        self._found[0] = TokenLogprobs(None, ())

    def add(self, logits: Tensor, start: int) -> None:
        """Take in raw logits [n, V] of the tokens start … start + n - 1.

        A token that is computed again (after a preemption) replaces what was there; rows beyond the
        prompt are passed over.
        """
        last = min(start + len(logits), len(self._prompt) - 1)
        chosen = list(self._prompt[start + 1 : last + 1])
        if not chosen:
            return
        tops = [self._top] * len(chosen)
        rows = logits[: len(chosen)]
        self._found[start + 1 : last + 1] = token_logprobs(rows, chosen, tops, self._tokenizer)

    def take(self) -> tuple[TokenLogprobs, ...]:
        """One per token of the prompt, when all have been added."""
        assert None not in self._found, "tokens of the prompt have no logits"
        return tuple(one for one in self._found if one is not None)
