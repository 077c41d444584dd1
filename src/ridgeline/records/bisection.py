"""The answer of `ridgeline bisect`: the commit that made a command slower, and how it was found."""

from __future__ import annotations

import msgspec

from ridgeline.records.tagged import TaggedRecord


class Commit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A commit as a person knows it."""

    sha: str
    author: str
    date: str
    """The author's date, as ISO 8601."""
    subject: str

    @property
    def name(self) -> str:
        """Short, as git shows it."""
        return self.sha[:10]


class Probe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One commit that was asked."""

    commit: Commit
    verdict: str
    """`good`, `bad` or `skipped`."""
    ratio: float | None
    """Its time over the good commit's; null where it was skipped."""
    ci_low: float | None
    ci_high: float | None
    rounds: int
    decided: bool
    """False where the rounds ran out before the noise did; then the ratio alone decided."""
    reason: str
    """Why it was skipped; empty else."""


class Bisection(TaggedRecord, frozen=True, kw_only=True, tag="bisection"):
    """The answer of `ridgeline bisect`. Ratios are times, later over earlier: above 1 is slower."""

    command: list[str]
    repository: str
    metric: str
    timed: str
    """What was timed of each run: `step`, `printed time`, `whole run`, …"""
    threshold: float
    good: Commit
    bad: Commit
    total: Probe
    """The bad commit against the good one."""
    culprit: Commit | None
    """Null where commits that could not be run stand between the good and the slow ones."""
    suspects: list[Commit]
    """The commits of which one is the culprit, oldest first. The culprit alone where it was
    found."""
    parent: Commit
    """The newest commit that is still fast."""
    ratio: float
    """The culprit (or the newest suspect) over that parent, measured side by side."""
    ci_low: float | None
    ci_high: float | None
    rounds: int
    proven: bool
    """Whether the whole interval lies above 1."""
    probes: list[Probe]
    """In the order asked, the ends left out."""
    notes: list[str]
