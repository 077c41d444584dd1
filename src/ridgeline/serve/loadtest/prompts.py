"""Synthetic prompts of given lengths: words, or token ids where the server takes those.

A prompt is made of blocks; a block's content follows from the run's seed and the block's id alone,
so equal ids are equal text, and another seed is new to every prefix cache. Words are counted in
tokens by a ratio that `probe.py` takes from the server's own usage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

_TEXT = (
    "the of and to in is that for it was on are as with they at be this have from or one had by"
    " word but not what all were we when your can said there use an each which she do how their if"
    " will up other about out many then them these so some her would make like him into time has"
    " look two more write go see number no way could people my than first water been call who oil"
    " its now find long down day did get come made may part"
)
WORDS = tuple(_TEXT.split())
"""Words, short and frequent: one token each in most vocabularies, with the space before it."""
_KEPT_BLOCKS = 20_000


@dataclass(slots=True, kw_only=True)
class SyntheticPrompts:
    """A maker of prompts of given lengths."""

    seed: int
    token_ids: range | None = None
    """Prompts are ids of this range, exact in length; None: words."""
    tokens_per_word: float = 1.0
    overhead_tokens: float = 0.0
    """Tokens that the server adds to every prompt: begin of text, chat template."""
    block_tokens: int = 512
    _blocks: dict[tuple[str, int], Sequence[int] | Sequence[str]] = field(default_factory=dict)

    def make(self, tokens: int, prefix_ids: Sequence[int] = (), own_id: int = 0) -> str | list[int]:
        """A prompt of about `tokens` tokens.

        Args:
            tokens: the whole length, that which the server adds included.
            prefix_ids: of its blocks; the rest of the prompt is its own.
            own_id: a number that no other prompt of the run has.
        """
        pieces = self._pieces(tokens - round(self.overhead_tokens))
        size = self._pieces(self.block_tokens)
        made: list[int | str] = []
        for prefix in prefix_ids:
            if len(made) >= pieces:
                break
            made += self._block(prefix, size)
        if len(made) < pieces:
            made += self._fresh(f"{self.seed}/own/{own_id}", pieces - len(made))
        del made[pieces:]
        return made if self.token_ids is not None else " ".join(made)  # type: ignore[return-value, arg-type]

    def _pieces(self, tokens: int) -> int:
        return max(1, tokens if self.token_ids else round(tokens / self.tokens_per_word))

    def _block(self, prefix: int, size: int) -> Sequence[int] | Sequence[str]:
        key = ("block", prefix)
        if key not in self._blocks:
            if len(self._blocks) >= _KEPT_BLOCKS:
                self._blocks.clear()
            self._blocks[key] = self._fresh(f"{self.seed}/block/{prefix}", size)
        return self._blocks[key]

    def _fresh(self, name: str, size: int) -> Sequence[int] | Sequence[str]:
        rng = Random(name)
        return rng.choices(self.token_ids if self.token_ids is not None else WORDS, k=size)  # type: ignore[return-value, arg-type]
