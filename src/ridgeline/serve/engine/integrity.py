"""What must hold between two steps, checked at each of them in debug mode."""

from __future__ import annotations

from ridgeline.batching.scheduler import Scheduler
from ridgeline.batching.sequence import Sequence


def check(scheduler: Scheduler) -> None:
    """Raise AssertionError if the books are wrong or two sequences would write into one block."""
    scheduler.check()
    size = scheduler.cache.block_size
    writers: dict[int, Sequence] = {}
    for sequence in scheduler.running:
        first, last = sequence.num_computed // size, sequence.writable // size
        for block in sequence.blocks[first:last]:
            other = writers.setdefault(block, sequence)
            assert other is sequence, (
                f"{other.request.id} and {sequence.request.id} may both write block {block}"
            )
