"""Log-probabilities of a prompt's own tokens, gathered as its chunks are computed.

Rows are needed for every token of the prompt, so such a request takes nothing from the prefix
cache.
"""

from __future__ import annotations

from torch import Tensor

from ridgeline.serve.messages import TokenLogprobs
from ridgeline.serve.sampling.logprobs import token_logprobs
from ridgeline.serve.sampling.text import Tokenizer


class PromptLogprobs:
    """Of one prompt. The first token has none: nothing comes before it."""

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
