"""The gap between what was measured and what the hardware allows, with its cause."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Verdict(StrEnum):
    """What bounds the step, top down. Exactly one holds for a profile."""

    INPUT_BOUND = "input-bound"
    HOST_BOUND = "host-bound"
    SYNC_BOUND = "sync-bound"
    MEMORY_BOUND = "memory-bound"
    COMPUTE_BOUND = "compute-bound"
    COMMUNICATION_BOUND = "communication-bound"
    MEMORY_CAPACITY_BOUND = "memory-capacity-bound"
    UNDECIDED = "undecided"
    """It computes, and its operators were not looked at: arithmetic, memory or the host. Or other
    programs held its cores for so long that what bounds it cannot be told."""


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One cause of lost time or memory, its evidence, its worth, and its cure."""

    cause: str
    """Stable name in kebab case, e.g. `unfused-optimizer`; one rule owns one cause."""
    share: float
    """Fraction of the step that the cause touches (0 … 1)."""
    gain_low: float
    """Expected speed-up of the whole step if cured, pessimistic: 1.0 is none."""
    gain_high: float
    """Expected speed-up of the whole step if cured, optimistic (Amdahl's law over `share`)."""
    confidence: float
    """How sure the rule is, from 0 to 1, that this is the cause."""
    summary: str
    """One sentence for a person, with its most telling number."""
    evidence: dict[str, float | int | str]
    """The numbers behind it; units live in the keys."""
    where: list[str]
    """Call sites in the user's code, `file:line`, most expensive first."""
    cure: str
    """What a person should do, in one sentence."""
    effort: str = "line"
    """`flag` (a setting), `line` (a line or two), `code` (real editing), `design`."""
    technique: str | None = None
    """Name of the technique that `tune` applies for it, if there is one."""


class TraceFinding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One cause of lost time in a trace; the first of a verdict is the one that bounds the run."""

    cause: str
    """Stable name in kebab case."""
    share: float
    """Share of the window that the cause takes, from 0 to 1, over all ranks that were given."""
    worth_us: float
    """What a rank's window would lose in length if the cause were gone: an upper bound."""
    confidence: float
    """How sure the rule is, from 0 to 1, that this is the cause."""
    summary: str
    """One sentence for a person, with its most telling number."""
    evidence: dict[str, float | int | str]
    """The numbers behind it; units live in the keys."""
    where: list[str] = []
    """Calls or lines of the user's code, the most expensive first."""
    cure: str
    """What to do, in one sentence."""
