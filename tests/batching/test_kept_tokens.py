"""Sequences that keep first and recent tokens: bounded, and what is seen is there."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ridgeline.batching.blocks import BlockCache
from ridgeline.batching.kept_tokens import KeptTokens
from ridgeline.batching.policies import Limits
from ridgeline.batching.scheduler import Scheduler
from ridgeline.batching.sequence import Request, Sequence, Status, Step


class Slots:
    """Which token of whose lies in every slot."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.kept = scheduler.cache.kept
        self.size = scheduler.cache.block_size
        self.held: dict[int, tuple[int, ...]] = {}
        """By slot, the tokens up to the one whose KV lies there."""
        self.most = 0

    def run(self) -> None:
        step = self.scheduler.schedule(0.0)
        for origin, target in step.copies:
            for at in range(self.size):
                if origin * self.size + at in self.held:
                    self.held[target * self.size + at] = self.held[origin * self.size + at]
        for one in step.slices:
            for position in range(one.start, one.start + one.count):
                slot = self.slot(one.sequence, position)
                self.held[slot] = tuple(one.sequence.tokens[: position + 1])
        for one in step.slices:
            self.see(one.sequence, one.start, one.start + one.count)
        self.scheduler.complete(step, self.sampled(step), 0.0)
        self.scheduler.check()
        for one in self.scheduler.running:
            self.most = max(self.most, len(one.blocks))

    def slot(self, sequence: Sequence, position: int) -> int:
        place = position
        assert self.kept is not None
        if position >= self.kept.first_blocks(self.size) * self.size:
            place = sequence.place(position, self.size)
        return sequence.blocks[place // self.size] * self.size + place % self.size

    def see(self, sequence: Sequence, start: int, stop: int) -> None:
        """Every token finds those that it sees, which are really theirs."""
        assert self.kept is not None
        for position in (start, stop - 1):
            recent = range(max(0, position - self.kept.recent + 1), position + 1)
            for seen in (*range(min(self.kept.first, position + 1)), *recent):
                assert self.held[self.slot(sequence, seen)] == tuple(sequence.tokens[: seen + 1])

    @staticmethod
    def sampled(step: Step) -> list[list[int]]:
        return [[len(one.sequence.tokens) % 7] if one.samples else [] for one in step.slices]


@settings(max_examples=60, deadline=None)
@example([(462, 1, False), (230, 1, False), (1, 1, False), (515, 1, False)], 38, 0, 4, 18, 8)
@example([(1, 6, False), (4, 6, False), (281, 1, False)], 1, 9, 4, 4, 8)
@given(
    st.lists(st.tuples(st.integers(1, 900), st.integers(1, 300), st.booleans()), max_size=7),
    st.integers(1, 60), st.integers(0, 20), st.sampled_from([4, 16]), st.integers(0, 40),
    st.integers(8, 200),
)  # fmt: skip
def test_what_a_token_sees_is_there_and_blocks_come_back(
    lengths: list[tuple[int, int, bool]], recent: int, first: int, size: int, spare: int,
    budget: int,
) -> None:  # fmt: skip
    kept = KeptTokens(recent=recent, first=first)
    most = kept.most_blocks(size)
    cache = BlockCache(most + spare, size, kept=kept)
    scheduler = Scheduler(
        Limits(max_tokens_per_step=budget, max_sequences=8, max_length=2000), cache
    )
    slots = Slots(scheduler)
    sequences = []
    for prompt, answer, alike in lengths:
        tokens = tuple((at if alike else at + prompt) % 19 for at in range(prompt))
        request = Request(id=str(prompt), prompt=tokens, max_tokens=answer, arrival=0.0)
        sequences.append(Sequence(request=request, tokens=list(tokens)))
        scheduler.add(sequences[-1], 0.0)
    for _ in range(20_000):
        if not scheduler.has_work:
            break
        slots.run()
    assert [one.num_generated for one in sequences] == [answer for _, answer, _ in lengths]
    assert all(one.status is Status.FINISHED for one in sequences)
    assert cache.num_free == cache.num_blocks
    assert slots.most <= most


def test_a_fork_goes_on_from_what_is_kept() -> None:
    cache = BlockCache(200, 4, kept=KeptTokens(recent=10, first=3))
    scheduler = Scheduler(Limits(max_tokens_per_step=64, max_sequences=4, max_length=900), cache)
    slots = Slots(scheduler)
    request = Request(id="a", prompt=tuple(range(300)), max_tokens=40, arrival=0.0)
    parent = Sequence(request=request, tokens=list(request.prompt))
    scheduler.add(parent, 0.0)
    while parent.num_generated < 3:
        slots.run()
    child = scheduler.fork(parent, request, 0.0, last_token=99)
    assert child.blocks == parent.blocks
    while scheduler.has_work:
        slots.run()
    assert (parent.num_generated, child.num_generated) == (40, 40)
    assert cache.num_free == 200


def test_a_cache_that_is_too_small_for_what_is_kept_is_refused() -> None:
    with pytest.raises(ValueError, match="do not keep what KeptTokens"):
        BlockCache(10, 16, kept=KeptTokens(recent=1024))
