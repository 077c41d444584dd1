"""Rows of waiting jobs by whom they outrank, as bits: all that outrank a running job at once.

Exact where rows outrank by few numbers, as priorities are. Where there are more, numbers share
buckets, and what is said are all rows that it is true of and some that it is nearly true of.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np

from ridgeline.queue.piece_bits import bits_of

_BUCKETS = 64
_MOVES = 1024
"""Rows that come before buckets are parted anew."""


class OutrankingRows:
    """Rows that tried in vain, each with the number below which it outranks running jobs."""

    def __init__(self, num_rows: int) -> None:
        self._below = np.full(num_rows, -np.inf)
        self._edges: list[float] = []
        self._bits = [0]
        """The bits of rows by how many edges at least are less than their number."""
        self._moves = 0

    def bits(self) -> int:
        """The bits of all rows."""
        return self._bits[0]

    def below(self, row: int) -> float:
        """The number below which a row outranks."""
        return float(self._below[row])

    def add(self, row: int, below: float) -> None:
        """Let a row be there that outranks what is below a number."""
        self._below[row] = below
        place = bisect_left(self._edges, below)
        if place == len(self._edges) or self._edges[place] != below:
            self._moves += 1
            if len(self._edges) < _BUCKETS or self._moves >= _MOVES:
                self._part()
                return
        bit = 1 << row
        for at in range(place + 1):
            self._bits[at] |= bit

    def remove(self, row: int) -> None:
        """Let a row be there no longer."""
        keep = ~(1 << row)
        for at in range(bisect_left(self._edges, float(self._below[row])) + 1):
            self._bits[at] &= keep
        self._below[row] = -np.inf

    def outranking(self, number: float) -> int:
        """The bits of all rows that outrank what has this number."""
        return self._bits[bisect_right(self._edges, number)]

    def not_outranking(self, number: float) -> int:
        """The bits of all rows that do not outrank what has this number."""
        place = bisect_left(self._edges, number) + 1
        outranking = self._bits[place] if place < len(self._bits) else 0
        return self._bits[0] & ~outranking

    def _part(self) -> None:
        """Put edges where as many rows lie between any two of them."""
        self._moves = 0
        numbers = np.unique(self._below[self._below > -np.inf])
        if len(numbers) > _BUCKETS:
            numbers = numbers[np.linspace(0, len(numbers) - 1, _BUCKETS).astype(np.int64)]
        self._edges = numbers.tolist()
        there = self._below > -np.inf
        self._bits = [bits_of(there), *(bits_of(self._below > edge) for edge in self._edges)]
