"""The channels of all tensors of a network, joined where one cannot go without the other.

Every channel that an operation makes gets a number. Two that are added, or that one weight slice
holds, are joined (union-find with path halving; Tarjan, "Efficiency of a good but not linear set
union algorithm", JACM 22, 1975). What can never go is joined with the number 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.int64]

WHOLE = 0
"""The number of all channels that stay."""


class Labels:
    """Numbers of channels, and which of them are one.

    >>> labels = Labels()
    >>> a, b = labels.new(2), labels.new(2)
    >>> labels.join(a, b)
    >>> labels.of(b).tolist() == labels.of(a).tolist()
    True
    """

    def __init__(self) -> None:
        self._parent = [WHOLE]

    def new(self, count: int) -> Array:
        """Numbers of as many channels, each on its own."""
        first = len(self._parent)
        self._parent.extend(range(first, first + count))
        return np.arange(first, first + count)

    def join(self, ones: Array, others: Array) -> None:
        """Each of `ones` goes with the one of `others` in its place, or neither does."""
        if ones is others:
            return
        for one, other in zip(ones.tolist(), others.tolist(), strict=True):
            low, high = sorted((self._root(one), self._root(other)))
            self._parent[high] = low

    def keep_whole(self, ones: Array) -> None:
        """None of them ever goes."""
        self.join(ones, np.zeros_like(ones))

    def of(self, ones: Array) -> Array:
        """The same number for all that are joined; 0 for what stays."""
        return np.array([self._root(one) for one in ones.tolist()], dtype=np.int64)

    def _root(self, one: int) -> int:
        parent = self._parent
        while parent[one] != one:
            parent[one] = parent[parent[one]]
            one = parent[one]
        return one
