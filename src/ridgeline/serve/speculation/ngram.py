"""A look-up of the prompt: what followed the last time these tokens came may follow again.

The longest n-gram at the end of a sequence that was there before is looked up, and the tokens after
its last occurrence are the guess (Saxena, "Prompt lookup decoding", 2023; the same idea as LLMA,
2304.04487). No model, no memory to speak of; pays where completions repeat their prompts:
summaries, code edits, extraction.
"""

from __future__ import annotations

from torch import Tensor

from ridgeline.batching.sequence import Sequence
from ridgeline.errors import InputError
from ridgeline.serve.messages import MemoryRow
from ridgeline.serve.sampling.state import SamplingState
from ridgeline.serve.speculation.drafter import Proposal

SHORTEST = 2
"""Tokens that are looked up at least, unless `longest` is below: one alone says too little."""


class Index:
    """Where each n-gram of one sequence was last followed by something; O(n) per token."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._shortest = min(SHORTEST, longest)
        self._after: dict[tuple[int, ...], int] = {}
        """n-gram → position of the token after it."""
        self._seen = 0
        """Tokens that are in the index as followers."""

    def propose(self, tokens: list[int], most: int) -> tuple[int, ...]:
        """At most so many guesses of what follows `tokens`, which may only have grown."""
        self._learn(tokens)
        end = len(tokens)
        for length in range(min(self._longest, end), self._shortest - 1, -1):
            start = self._after.get(tuple(tokens[end - length :]))
            if start is not None:
                # Where the source reaches the end it goes on with the guess: a loop is continued.
                guess: list[int] = []
                for at in range(start, start + most):
                    guess.append(tokens[at] if at < end else guess[at - end])
                return tuple(guess)
        return ()

    def _learn(self, tokens: list[int]) -> None:
        after, longest = self._after, self._longest
        for at in range(max(1, self._seen), len(tokens)):
            for length in range(self._shortest, min(longest, at) + 1):
                after[tuple(tokens[at - length : at])] = at
        self._seen = len(tokens)


class NgramDrafter:
    """One index per sequence.

    Args:
        num_drafts: Guesses at most.
        longest: Tokens of the longest n-gram that is looked up.

    Raises:
        InputError: Either is below one.
    """

    needs_hidden = False

    def __init__(self, num_drafts: int, longest: int) -> None:
        if num_drafts < 1 or longest < 1:
            raise InputError(
                f"n-gram drafts need at least one draft ({num_drafts}) and one token to look up "
                f"({longest})"
            )
        self._num_drafts = num_drafts
        self._longest = longest
        self._indices: dict[Sequence, Index] = {}

    def propose(
        self,
        sequences: list[Sequence],
        states: list[SamplingState],  # noqa: ARG002 (the drafters' common signature)
        hidden: Tensor | None,  # noqa: ARG002
    ) -> list[Proposal]:
        """Certain guesses; none where no n-gram was there before."""
        return [
            Proposal(self._index(one).propose(one.tokens, self._num_drafts)) for one in sequences
        ]

    def forget(self, sequence: Sequence) -> None:
        """Drop the index of a sequence."""
        self._indices.pop(sequence, None)

    def memory(self) -> list[MemoryRow]:
        """No rows, for nothing is on the device."""
        return []

    def _index(self, sequence: Sequence) -> Index:
        index = self._indices.get(sequence)
        if index is None:
            index = self._indices[sequence] = Index(self._longest)
        return index
