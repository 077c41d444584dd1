"""The order of sequences: how those that wait are sorted, and who stays when room runs out.

An order touches neither blocks nor tokens: that is `scheduler.py`. Each class says who can starve
under it.
"""

from __future__ import annotations

from typing import Protocol, get_args

from ridgeline.batching.blocks import BlockCache
from ridgeline.batching.limits import Order
from ridgeline.batching.sequence import Sequence

Rank = tuple[int, ...]
"""A place in a queue: lower goes first, and equal ranks keep their order."""


class Ordering(Protocol):
    """An order without a state: ranks are functions of a sequence."""

    settled: bool
    """Whether the rank of a waiting sequence never changes."""

    def waiting_rank(self, sequence: Sequence, cache: BlockCache, /) -> Rank:
        """A place in the queue: the lowest is admitted next."""
        ...

    def running_rank(self, sequence: Sequence) -> Rank:
        """A place among those that run: the highest is preempted first."""
        ...


class FirstCome:
    """First come, first served: nobody starves, for whoever came before is served before.

    A sequence that was preempted came before all who wait, so it is in front of them again; the
    newest is preempted. The queue never overtakes its head, even where a shorter prompt would fit.
    """

    settled = True

    def waiting_rank(self, sequence: Sequence, _cache: BlockCache) -> Rank:
        """The order of arrival at the scheduler."""
        return (sequence.serial,)

    def running_rank(self, sequence: Sequence) -> Rank:
        """The order of arrival: who came last has the least to lose."""
        return (sequence.serial,)


class Priority:
    """`Request.priority` first, lower before higher; by arrival among equals.

    Low urgency starves for as long as more urgent requests fill the engine: that is what was asked
    for. Whoever runs is only preempted when blocks run out, the least urgent first and of those the
    newest; nobody is thrown out merely because someone more urgent waits.
    """

    settled = True

    def waiting_rank(self, sequence: Sequence, _cache: BlockCache) -> Rank:
        """The priority, then the order of arrival."""
        return (sequence.request.priority, sequence.serial)

    def running_rank(self, sequence: Sequence) -> Rank:
        """The priority, then the order of arrival."""
        return (sequence.request.priority, sequence.serial)


class ShortestPrompt(FirstCome):
    """Short prompts go first: the least mean time to first token, as shortest-job-first has it.

    Long prompts starve while shorter ones keep coming. Preempted sequences go before all others:
    they were given a place already, and each wait costs a computation again.
    """

    def waiting_rank(self, sequence: Sequence, _cache: BlockCache) -> Rank:
        """Preempted sequences, then new ones by the length of their prompt."""
        fresh = sequence.scheduled_at is None
        return (fresh, len(sequence.request.prompt) if fresh else 0, sequence.serial)


class LongestPrefix(FirstCome):
    """Whoever finds most of its prompt in the cache first, before its blocks are overwritten.

    The order of SGLang's `lpm` (Zheng et al., 2312.07104, section 3). Prompts that share nothing
    starve while others that do keep coming. What is known changes with every step, so the queue is
    sorted whenever a seat is free: one look-up per block of every prompt that waits.
    """

    settled = False

    def waiting_rank(self, sequence: Sequence, cache: BlockCache) -> Rank:
        """Preempted sequences, then new ones by the blocks of theirs that are known."""
        fresh = sequence.scheduled_at is None
        return (fresh, -len(cache.known(sequence)) if fresh else 0, sequence.serial)


ORDERS: dict[Order, Ordering] = {
    "fcfs": FirstCome(),
    "priority": Priority(),
    "shortest-prompt": ShortestPrompt(),
    "longest-prefix": LongestPrefix(),
}


def ordering(name: Order) -> Ordering:
    """The order of that name.

    Raises:
        ValueError: There is none.
    """
    if name not in ORDERS:
        raise ValueError(f"no order is called {name!r}; there are {', '.join(get_args(Order))}")
    return ORDERS[name]
