"""What holds between steps, whatever the policy."""

from __future__ import annotations

from ridgeline.batching.blocks import BlockCache
from ridgeline.batching.sequence import Sequence, Status


def check_books(
    running: list[Sequence],
    waiting: list[Sequence],
    handed_over: list[Sequence],
    cache: BlockCache,
) -> None:
    """Raise AssertionError with what is broken, in the sequences' books or the cache's."""
    for sequence in running:
        held = (len(sequence.blocks) + sequence.dropped) * cache.block_size
        assert sequence.status is Status.RUNNING, "a running sequence has another status"
        assert 0 <= sequence.num_computed < len(sequence.tokens) < sequence.most_tokens
        assert sequence.num_computed <= held, "computed tokens lie in no block"
        assert sequence.writable <= held, "writable beyond the blocks"
    for sequence in waiting:
        assert sequence.status is Status.WAITING, "a waiting sequence has another status"
        assert not sequence.blocks, "a waiting sequence holds blocks"
    cache.check([*running, *handed_over])
    _check_writers(running, cache.block_size)


def _check_writers(running: list[Sequence], block_size: int) -> None:
    """Raise AssertionError if two sequences may both write into one block."""
    writers: dict[int, Sequence] = {}
    for sequence in running:
        first, last = sequence.num_computed // block_size, sequence.writable // block_size
        for block in sequence.blocks[first - sequence.dropped : last - sequence.dropped]:
            other = writers.setdefault(block, sequence)
            assert other is sequence, (
                f"{other.request.id} and {sequence.request.id} may both write block {block}"
            )
