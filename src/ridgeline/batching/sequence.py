"""A request as it is being generated: its tokens, what of them is computed, where its KV lies."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ridgeline.batching.request import Request


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
    """Mutable; only the scheduler changes it, but for `drafts`, which the engine sets.

    The invariant between steps: KV of the first `num_computed` tokens lies in `blocks`, and
    `num_computed < len(tokens)`, so at least one token is left to compute.
    """

    request: Request
    tokens: list[int]
    """Prompt and what was generated so far."""
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    """Block ids in order; block i holds the tokens [i · block_size, (i + 1) · block_size)."""
    drafts: list[int] = field(default_factory=list)
    """Guesses of the next tokens, to be checked in the coming step."""
    status: Status = Status.WAITING
    finish_reason: FinishReason | None = None
    num_preemptions: int = 0
    wasted_tokens: int = 0
    """Computed, thrown away by preemption, to be computed again."""
    cached_tokens: int = 0
    """Of the prompt, found in the prefix cache at the first admission."""
    scheduled_at: float | None = None
    """First admission."""
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
    """Of its first full blocks, as far as they were asked for (`prefix.py`)."""
    num_remembered: int = 0
    """Blocks that were offered to the prefix cache."""
    lost_tokens: int = 0
    """Computed before the last preemption."""

    @property
    def num_generated(self) -> int:
        """Tokens beyond the prompt."""
        return len(self.tokens) - len(self.request.prompt)
