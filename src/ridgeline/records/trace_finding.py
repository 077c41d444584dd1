"""A finding from a profiler trace: what the GPU lost time to, what that is worth, and the cure."""

from __future__ import annotations

import msgspec


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
