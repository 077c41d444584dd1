"""Consecutive blocks, as caches without paging need them: first fit over a list of gaps."""

from __future__ import annotations

from bisect import bisect_left


class FreeRuns:
    """The gaps of a row of blocks, sorted and never touching."""

    def __init__(self, num_blocks: int) -> None:
        self._gaps = [(0, num_blocks)] if num_blocks else []
        """(first block, length)"""
        self.num_free = num_blocks

    def take(self, count: int) -> int | None:
        """First block of `count` consecutive ones; None: no gap is that long."""
        for index, (first, length) in enumerate(self._gaps):
            if length >= count:
                self._cut(index, count)
                return first
        return None

    def take_at(self, first: int, count: int) -> bool:
        """Take `count` blocks from `first` on, if a gap that long begins there."""
        index = bisect_left(self._gaps, (first, 0))
        if index == len(self._gaps) or self._gaps[index][0] != first:
            return False
        if self._gaps[index][1] < count:
            return False
        self._cut(index, count)
        return True

    def give(self, first: int, count: int) -> None:
        """Free blocks again, and join what now touches."""
        index = bisect_left(self._gaps, (first, 0))
        end = first + count
        if index < len(self._gaps) and self._gaps[index][0] == end:
            end += self._gaps.pop(index)[1]
        if index and sum(self._gaps[index - 1]) == first:
            index -= 1
            first = self._gaps.pop(index)[0]
        self._gaps.insert(index, (first, end - first))
        self.num_free += count

    def free_blocks(self) -> list[int]:
        """All of them, in order."""
        return [block for first, length in self._gaps for block in range(first, first + length)]

    def check(self) -> None:
        """Raise AssertionError if the gaps overlap, touch or do not add up."""
        assert sum(length for _, length in self._gaps) == self.num_free, "gaps do not add up"
        end = -1
        for first, length in self._gaps:
            assert length > 0, "an empty gap"
            assert first > end, "gaps touch or overlap"
            end = first + length

    def _cut(self, index: int, count: int) -> None:
        first, length = self._gaps[index]
        if length == count:
            del self._gaps[index]
        else:
            self._gaps[index] = (first + count, length - count)
        self.num_free -= count
