"""Layouts in which a sequence's blocks follow each other, as before paging; kept to compare.

What they waste is counted in Kwon et al. (2309.06180, section 2): slots reserved for tokens to
come, slots that no token ever takes, and gaps too short for anyone. Nothing is shared here: no
prefix is known, and a fork computes its tokens again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from ridgeline.batching.sequence import Sequence


class FreeRuns:
    """The gaps of a row of blocks, sorted and never touching."""

    def __init__(self, num_blocks: int) -> None:
        self._gaps = [(0, num_blocks)] if num_blocks else []
        """The gaps as (first block, length)."""
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


class Contiguous:
    """Every sequence reserves `max_length` tokens when it is admitted."""

    shares = False

    def __init__(self, num_blocks: int, block_size: int, max_length: int) -> None:
        self._size = block_size
        self._num_blocks = num_blocks
        self._runs = FreeRuns(num_blocks)
        self.most_tokens = -(-max_length // block_size) * block_size

    @property
    def num_free(self) -> int:
        """Blocks that no sequence has reserved."""
        return self._runs.num_free

    def known(self, _sequence: Sequence, /) -> list[int]:
        """No blocks, for no prefix is known."""
        return []

    def admit(self, sequence: Sequence, _known: list[int], _reserve: int, /) -> bool:
        """A run for as long as it may become; False: no gap is that long.

        No reserve is kept: nobody grows beyond what was reserved here.
        """
        return self._place(sequence, self.most_tokens // self._size)

    def extend(
        self, sequence: Sequence, num_tokens: int, _copies: list[tuple[int, int]], /
    ) -> bool:
        """Set how far the sequence may write; all was reserved at admission."""
        sequence.writable = len(sequence.blocks) * self._size
        assert num_tokens <= sequence.writable, "longer than max_length"
        return True

    def shrink(self, sequence: Sequence) -> None:
        """Nothing is given back before the end: a run keeps what it has reserved."""

    def share(self, parent: Sequence, child: Sequence) -> None:
        """Never asked for, since `shares` is False."""
        raise NotImplementedError

    def remember(self, sequence: Sequence, num_tokens: int) -> None:
        """Nothing is remembered in this layout."""

    def free(self, sequence: Sequence) -> None:
        """Free the whole run of blocks."""
        if sequence.blocks:
            self._runs.give(sequence.blocks[0], len(sequence.blocks))

    def disown(self, sequence: Sequence, first: int) -> None:
        """Nothing has a name in this layout."""

    def forget(self) -> None:
        """Nothing is ever found by its content."""

    def check(self, holders: Iterable[Sequence] | None) -> None:
        """Raise AssertionError if the gaps are wrong, or not what `holders` leave."""
        self._runs.check()
        if holders is None:
            return
        held = [block for sequence in holders for block in sequence.blocks]
        owned = sorted(held + self._runs.free_blocks())
        assert owned == list(range(self._num_blocks)), "blocks leaked or doubly owned"

    def _place(self, sequence: Sequence, count: int) -> bool:
        first = self._runs.take(count)
        if first is None:
            return False
        sequence.blocks = list(range(first, first + count))
        return True


class Dynamic(Contiguous):
    """A run that begins as long as the prompt and doubles, moving when it cannot grow in place."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size, num_blocks * block_size)

    def admit(self, sequence: Sequence, _known: list[int], reserve: int, /) -> bool:
        """A run for the tokens it has, with `reserve` blocks left elsewhere."""
        count = -(-len(sequence.tokens) // self._size)
        return count + reserve <= self._runs.num_free and self._place(sequence, count)

    def extend(self, sequence: Sequence, num_tokens: int, copies: list[tuple[int, int]], /) -> bool:
        """Twice the run if that fits, else as much as is needed, else False."""
        needed = -(-num_tokens // self._size)
        most = -(-(sequence.most_tokens - 1) // self._size)
        if needed <= len(sequence.blocks):
            needed = doubled = len(sequence.blocks)
        else:
            doubled = max(needed, min(2 * len(sequence.blocks), most))
        if not any(self._grow(sequence, count, copies) for count in (doubled, needed)):
            return False
        sequence.writable = len(sequence.blocks) * self._size
        return True

    def _grow(self, sequence: Sequence, count: int, copies: list[tuple[int, int]]) -> bool:
        old = sequence.blocks
        if count <= len(old):
            return True
        if self._runs.take_at(old[-1] + 1, count - len(old)):
            sequence.blocks = list(range(old[0], old[0] + count))
            return True
        if not self._place(sequence, count):
            return False
        used = -(-sequence.num_computed // self._size)
        copies.extend(zip(old[:used], sequence.blocks, strict=False))
        self._runs.give(old[0], len(old))
        return True
