"""Requests, sequences as they grow, and the steps that compute them.

A request is what a caller wants, a sequence its tokens so far with the blocks of their KV, a step
the slices of sequences that the model computes together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from itertools import repeat
from operator import attrgetter
from typing import NamedTuple

from ridgeline.records.step_log import StepWork


class Content(NamedTuple):
    """What stands behind some of a prompt's tokens, which look alike whatever it is: an image."""

    start: int
    stop: int
    """The place behind its last token."""
    digest: bytes
    """A hash of what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt and how long its completion may become."""

    id: str
    prompt: tuple[int, ...]
    """Token ids, at least one."""
    max_tokens: int
    """New tokens at most, at least one."""
    arrival: float
    """Seconds on the clock whose `now` the scheduler is given."""
    priority: int = 0
    """Lower goes first, under the policy `priority`."""
    adapter: str = ""
    """Name of the LoRA adapter; sequences of different adapters share no prefix."""
    prefill_only: bool = False
    """Ends after its first token with its blocks kept, for another engine to go on from."""
    reuse_prefix: bool = True
    """Whether blocks come from the prefix cache; off where every token's logits are wanted."""
    contents: tuple[Content, ...] = ()
    """What tokens of the prompt stand for, in order; prefixes are shared where it is the same."""


class Status(Enum):
    """Where a sequence is. Preempted ones wait again, with `num_preemptions` above 0."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(Enum):
    """Why a sequence ended, in the words of the OpenAI API where it has them."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    HANDOVER = "handover"
    """Prefilled here; another engine decodes it."""


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """Mutable; only the scheduler changes it, but for drafts and parents, which the engine sets.

    The invariant between steps: KV of the first `num_computed` tokens lies in `blocks`, and
    `num_computed < len(tokens)`, so at least one token is left to compute.
    """

    request: Request
    tokens: list[int]
    """Prompt and what was generated so far."""
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    """Block ids in order; block i holds the tokens [i · block_size, (i + 1) · block_size)."""
    dropped: int = 0
    """Blocks behind the first ones that were given back, so that later ones stand so much earlier
    (`kept_tokens.py`)."""
    drafts: list[int] = field(default_factory=list)
    """Guesses of the next tokens, to be checked in the coming step."""
    parents: tuple[int, ...] = ()
    """Which draft each one follows, as `draft_tree.py` says; none: they are a chain."""
    status: Status = Status.WAITING
    finish_reason: FinishReason | None = None
    num_preemptions: int = 0
    wasted_tokens: int = 0
    """Computed, thrown away by preemption, to be computed again."""
    cached_tokens: int = 0
    """Tokens of the prompt that were found in the prefix cache at the first admission."""
    scheduled_at: float | None = None
    """The time of the first admission."""
    first_token_at: float | None = None
    finished_at: float | None = None
    queued_at: float | None = None
    """Entered the queue, last after a preemption."""
    serial: int = 0
    """Order of arrival at the scheduler; forks have their parent's."""
    most_tokens: int = 0
    """Ends by length with so many; `max_tokens`, `max_length` and the cache's size decide."""
    writable: int = 0
    """Positions below are decoded without asking the cache for room; 0: ask."""
    hashes: list[bytes] = field(default_factory=list)
    """The names of its first full blocks, as far as they were asked for (`pool.py`)."""
    num_remembered: int = 0
    """Blocks that were offered to the prefix cache."""
    lost_tokens: int = 0
    """Computed before the last preemption."""

    def place(self, position: int, block_size: int) -> int:
        """Where a token that is about to be computed lies, counted over the blocks held."""
        return position - self.dropped * block_size

    @property
    def num_generated(self) -> int:
        """Tokens beyond the prompt."""
        return len(self.tokens) - len(self.request.prompt)


class Slice(NamedTuple):
    """Tokens [start, start + count) of a sequence, then its drafts; blocks for all are allocated.

    A tuple because one is made per sequence and step, and frozen dataclasses take thrice the time.
    """

    sequence: Sequence
    start: int
    count: int  # type: ignore[assignment] # hides tuple.count, which nobody asks a slice for
    """The number of the sequence's own tokens, at least one."""
    drafts: tuple[int, ...] = ()
    """Checked in this step; only where the slice reaches the last token."""
    parents: tuple[int, ...] = ()
    """Which draft each one follows, as `draft_tree.py` says; none: they are a chain."""

    @property
    def samples(self) -> bool:
        """Whether the slice reaches the last token, so that new tokens come of it."""
        return self.start + self.count == len(self.sequence.tokens)

    @property
    def num_tokens(self) -> int:
        """Tokens that the model computes."""
        return self.count + len(self.drafts)


def decodes_of(sequences: tuple[Sequence, ...]) -> list[Slice]:
    """A slice with the next token of each sequence, made without a turn of Python for each."""
    values = zip(sequences, map(_COMPUTED, sequences), repeat(1), repeat(()), repeat(()))
    return list(map(tuple.__new__, repeat(Slice), values))


_COMPUTED = attrgetter("num_computed")


@dataclass(frozen=True, slots=True)
class Step:
    """Slices in the order of the batch: decodes first, then chunks of prompts."""

    slices: tuple[Slice, ...]
    copies: tuple[tuple[int, int], ...] = ()
    """Blocks (from, to) whose KV is copied before anything is computed: copy-on-write, and moves of
    the dynamic layout. All are read before any is written: two runs may change places."""
    preempted: tuple[Sequence, ...] = ()
    """Thrown out to make room, in order; they wait and compute again."""
    plain: tuple[Sequence, ...] = ()
    """The sequences of the first slices, where those are decodes without drafts: what comes of them
    is taken in at less cost."""

    @property
    def num_tokens(self) -> int:
        """Tokens that the model computes."""
        return sum(one.num_tokens for one in self.slices)


@dataclass(slots=True)
class Counters:
    """What a scheduler has counted since it began, as `/metrics` serves it."""

    steps: int = 0
    prompt_tokens: int = 0
    """Prompt tokens of admitted requests, cached ones included."""
    generation_tokens: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    preemptions: int = 0
    wasted_tokens: int = 0
    draft_rounds: int = 0
    """The slices that had drafts."""
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    """Ended sequences by `FinishReason.value`."""

    def note_admission(self, sequence: Sequence, *, looked_up: bool) -> None:
        """Count a sequence whose first `num_computed` tokens were in the cache when it got blocks.

        Args:
            sequence: Waits until now; the first time, or after a preemption.
            looked_up: Its beginning was looked for in the prefix cache.
        """
        found = sequence.num_computed
        if sequence.scheduled_at is None:
            prompt = len(sequence.request.prompt)
            sequence.cached_tokens = min(found, prompt)
            self.prompt_tokens += prompt
            if looked_up:
                self.prefix_queries += prompt
                self.prefix_hits += sequence.cached_tokens
        else:
            wasted = max(0, sequence.lost_tokens - found)
            sequence.wasted_tokens += wasted
            self.wasted_tokens += wasted


def work_of(step: Step) -> StepWork:
    """What a step computes; to be asked before the scheduler is told what came of it.

    A single token behind others is a decode, whatever it was asked for: the same kernels run.
    Drafts count as decodes of their own, but their sequence's cache is read once.
    """
    tokens = pairs = done = decodes = context = 0
    for sequence, start, count, drafts, _ in step.slices:
        if count == 1 and start:
            decodes += 1 + len(drafts)
            context += start + 1 + len(drafts)
            continue
        tokens += count
        pairs += count * start + count * (count + 1) // 2
        done += start + count == len(sequence.tokens)
    return StepWork(tokens, pairs, done, decodes, context)
