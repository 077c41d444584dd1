"""How often an answer has each token, kept so that a batch's penalties are one operation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SPARE = 64


class History:
    """Distinct tokens of prompt and answer with their counts in the answer.

    A prompt's tokens have count 0: the repetition penalty takes them in, the two others do not.
    """

    def __init__(self, prompt: tuple[int, ...]) -> None:
        distinct = sorted(set(prompt))
        self._slots = {token: slot for slot, token in enumerate(distinct)}
        self._tokens = np.zeros(len(distinct) + SPARE, np.int64)
        self._tokens[: len(distinct)] = distinct
        self._counts = np.zeros(len(distinct) + SPARE, np.float32)
        self._size = len(distinct)

    def add(self, token: int) -> None:
        """The answer has one more of this token."""
        slot = self._slots.get(token)
        if slot is None:
            slot = self._size
            if slot == len(self._tokens):
                self._tokens = np.concatenate((self._tokens, np.zeros_like(self._tokens)))
                self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
            self._tokens[slot] = token
            self._counts[slot] = 0
            self._slots[token] = slot
            self._size += 1
        self._counts[slot] += 1

    def with_drafts(self, drafts: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Tokens and counts, [D] each, as if the drafts had been accepted."""
        tokens, counts = self._tokens[: self._size], self._counts[: self._size]
        if not drafts:
            return tokens, counts
        counts = counts.copy()
        new: dict[int, int] = {}
        for draft in drafts:
            slot = self._slots.get(draft)
            if slot is None:
                new[draft] = new.get(draft, 0) + 1
            else:
                counts[slot] += 1
        added = np.fromiter(new.keys(), np.int64, len(new))
        times = np.fromiter(new.values(), np.float32, len(new))
        return np.concatenate((tokens, added)), np.concatenate((counts, times))
