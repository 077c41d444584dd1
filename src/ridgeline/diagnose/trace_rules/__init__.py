"""One file per rule over profiler traces. `trace_verdict` finds them here and names none of them.

A rule module defines

    CAUSES                        names of the causes that it may report; each has one owner
    LEADS_FROM, LEADS_BY          weight from which its cause can be what bounds the run, by its
                                  `worth` and share together or its `share` alone
    leads_from(finding)           only where that weight depends on the finding
    find(reading) -> [finding]    pure: evidence in, findings out

A rule reports what its evidence supports; the order is for `trace_verdict.py`. A new file is a new
rule. What may not enter: another rule, torch, a clock, a file.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

from ridgeline.diagnose.rule_files import rule_files
from ridgeline.diagnose.trace_reading import TraceReading
from ridgeline.records.finding import TraceFinding


class TraceRule(Protocol):
    """The shape of a rule module."""

    CAUSES: tuple[str, ...]
    LEADS_FROM: float
    LEADS_BY: str

    def find(self, reading: TraceReading) -> list[TraceFinding]:
        """Findings of this rule on the ranks of one job."""


@cache
def all_trace_rules() -> dict[str, TraceRule]:
    """Every rule by file name."""
    return rule_files(__name__, __path__)
