"""Many steps at once, for a simulation: while the same sequences decode, all steps are alike.

Nothing but a block now and then changes in such a step, so a run of them is done sequence by
sequence instead of step by step. What it leaves is exactly what the steps would have left: the same
tokens, the same blocks taken in the same order, the same counters. A test holds the two together.
"""

from __future__ import annotations

from ridgeline.batching.scheduler import Scheduler
from ridgeline.batching.sequence import Sequence


def steps_ahead(scheduler: Scheduler) -> int:
    """Steps in which all who run get one token each, nobody ends, and nobody gives way.

    Provided that nobody comes. Those who wait stay where they are if the last step left them there:
    the caller knows. 0: the next step has to be scheduled.
    """
    running, cache = scheduler.running, scheduler.cache
    if not running or cache.layout != "paged" or cache.kept is not None:
        return 0
    for one in running:
        if one.num_computed != len(one.tokens) - 1 or one.drafts or one.first_token_at is None:
            return 0
    most = min(one.most_tokens - len(one.tokens) for one in running) - 1
    # A block that is shared is copied before it is written: one more for each, to be sure.
    free = cache.num_free - len(running)
    low, high = 0, most
    while low < high:  # nearly always `most` is possible, and the first look says so
        middle = high if high == most else (low + high + 1) // 2
        if _blocks_needed(running, middle, cache.block_size) <= free:
            low = middle
        else:
            high = middle - 1
    return low


def may_repeat(scheduler: Scheduler) -> bool:
    """Whether those who wait, left waiting by a step, are left so by the next ones like it.

    The clock decides in other modes than the continuous one, and under an order that looks at the
    cache another may be first as blocks are forgotten.
    """
    limits = scheduler.limits
    return limits.batching == "continuous" and limits.order != "longest-prefix"


def advance(scheduler: Scheduler, steps: int) -> None:
    """Do so many of the steps that `steps_ahead` allows; every token is 0."""
    running, cache = scheduler.running, scheduler.cache
    size = cache.block_size
    copies: list[tuple[int, int]] = []
    for one in running:  # the first step asks for those who have no room left
        if one.num_computed >= one.writable:
            assert cache.extend(one, one.num_computed + 1, copies), "room was counted before"
    began = [one.num_computed for one in running]
    asks = [
        (after, index)
        for index, one in enumerate(running)
        for after in range(one.writable - one.num_computed, steps, size)
    ]
    asks.sort()
    for after, index in asks:
        one = running[index]
        one.num_computed = began[index] + after
        assert cache.extend(one, one.num_computed + 1, copies), "room was counted before"
    assert not copies, "a simulation forks nothing"
    zeros = [0] * steps
    for one, computed in zip(running, began, strict=True):
        one.tokens += zeros
        one.num_computed = computed + steps
    scheduler.counters.steps += steps
    scheduler.counters.generation_tokens += steps * len(running)


def _blocks_needed(running: list[Sequence], steps: int, size: int) -> int:
    """Blocks that the sequences do not hold yet, to write so many tokens each."""
    return sum(max(0, -(-(one.num_computed + steps) // size) - len(one.blocks)) for one in running)
