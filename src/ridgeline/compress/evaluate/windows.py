"""A text as windows that a model reads one by one, so that each token is scored once.

Windows begin every `stride` tokens and are `context` long; in each, only the tokens that no window
before it reached are scored, so all but the first window's have at least `context − stride` tokens
before them. The protocol of Hugging Face's "Perplexity of fixed-length models", counted exactly:
a window's very first token has nothing before it and is never scored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from ridgeline.errors import InputError


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens `begin` to `end` of a text; those from `first` on are scored."""

    begin: int
    end: int
    first: int

    @property
    def scored(self) -> int:
        """Tokens."""
        return self.end - self.first


def windows(num_tokens: int, context: int, stride: int) -> list[Window]:
    """All windows of a text.

    Raises:
        InputError: The stride would skip tokens, or the text does not fill one window.

    >>> [(one.begin, one.first, one.end) for one in windows(10, 4, 3)]
    [(0, 1, 4), (3, 4, 7), (6, 7, 10)]
    """
    if context < 2:
        raise InputError(f"--context {context}: at least 2 tokens are needed")
    if not 1 <= stride <= context:
        raise InputError(f"--stride {stride}: give 1 to --context {context}")
    if num_tokens < context:
        raise InputError(
            f"the text has {num_tokens} tokens, fewer than one window of {context}; give more text"
            " or a smaller --context"
        )
    found = []
    reached = 0
    for begin in range(0, num_tokens, stride):
        end = min(begin + context, num_tokens)
        found.append(Window(begin, end, max(reached, begin + 1)))
        reached = end
        if end == num_tokens:
            break
    return [one for one in found if one.scored]


def batches(found: list[Window], tokens: int) -> Iterator[list[Window]]:
    """Windows of one length together, about `tokens` tokens at a time."""
    for length, alike in groupby(found, lambda one: one.end - one.begin):
        same = list(alike)
        count = max(1, tokens // length)
        for start in range(0, len(same), count):
            yield same[start : start + count]
