"""One step of the engine, as the scheduler orders it: which tokens of which sequences."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ridgeline.batching.sequence import Sequence


class Slice(NamedTuple):
    """Tokens [start, start + count) of a sequence, then its drafts; blocks for all are allocated.

    A tuple because one is made per sequence and step, and frozen dataclasses take thrice the time.
    """

    sequence: Sequence
    start: int
    count: int  # type: ignore[assignment] # hides tuple.count, which nobody asks a slice for
    """Of the sequence's own tokens, at least one."""
    drafts: tuple[int, ...] = ()
    """Checked in this step; only where the slice reaches the last token."""

    @property
    def samples(self) -> bool:
        """Whether the slice reaches the last token, so that new tokens come of it."""
        return self.start + self.count == len(self.sequence.tokens)

    @property
    def num_tokens(self) -> int:
        """Tokens that the model computes."""
        return self.count + len(self.drafts)


@dataclass(frozen=True, slots=True)
class Step:
    """Slices in the order of the batch: decodes first, then chunks of prompts."""

    slices: tuple[Slice, ...]
    copies: tuple[tuple[int, int], ...] = ()
    """Blocks (from, to) whose KV is copied before anything is computed: copy-on-write, and moves of
    the dynamic layout. No block is written by one copy and read by a later one."""
    preempted: tuple[Sequence, ...] = ()
    """Thrown out to make room, in order; they wait and compute again."""

    @property
    def num_tokens(self) -> int:
        """Tokens that the model computes."""
        return sum(one.num_tokens for one in self.slices)


@dataclass(slots=True)
class Counters:
    """Since the scheduler began; what `/metrics` serves."""

    steps: int = 0
    prompt_tokens: int = 0
    """Of admitted requests, cached ones included."""
    generation_tokens: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    preemptions: int = 0
    wasted_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    """Sequences by `FinishReason.value`."""
