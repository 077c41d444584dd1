"""The diagnosis of one script: every rule on every rank, ranked, with a verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ridgeline.diagnose.reading import Reading
from ridgeline.diagnose.rules import all_rules
from ridgeline.diagnose.verdict import verdict
from ridgeline.hardware.ceilings import Ceilings
from ridgeline.records import Finding, StepProfile, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What bounds a script, and what is worth doing about it."""

    verdict: Verdict
    findings: tuple[Finding, ...]
    """Most worthwhile first; empty: nothing is worth doing."""
    limit_fraction: float
    """How much of the step the hardware itself needs: 1 is its limit."""


def diagnose(profiles: Sequence[StepProfile], ceilings: Ceilings | None = None) -> Diagnosis:
    """Judge what was measured: one profile per rank, rank 0 first.

    A cause that several ranks show is reported once, as the rank tells it on which it costs most.
    """
    if not profiles:
        raise ValueError("there is no profile to diagnose")
    readings = [
        Reading(profile=profile, ranks=tuple(profiles), ceilings=ceilings) for profile in profiles
    ]
    found: dict[str, Finding] = {}
    for reading in readings:
        for rule in all_rules().values():
            for finding in rule.find(reading):
                known = found.get(finding.cause)
                if known is None or finding.gain_high > known.gain_high:
                    found[finding.cause] = finding
    return Diagnosis(
        verdict=verdict(readings[0]),
        findings=tuple(ranked(found.values())),
        limit_fraction=profiles[0].limit_fraction,
    )


LEAST_GAIN = {"flag": 1.025, "line": 1.035, "code": 1.045, "design": 1.06}
"""Speed-up, weighed by confidence, below which a finding of that effort is not reported."""
LEAST_CONFIDENCE = 0.3
WARNING_GAIN = 3.0
"""A warning ranks as if its cure gained this much."""
EFFORT = {"flag": 1.0, "line": 1.1, "code": 1.6, "design": 3.0}
"""What a change costs a person, in changes of a setting."""


def is_warning(finding: Finding) -> bool:
    """Is it about something else than speed?"""
    return finding.gain_high <= 1.0


def expected_gain(finding: Finding) -> float:
    """The geometric mean of its range."""
    return math.sqrt(finding.gain_low * finding.gain_high)


def is_worthwhile(finding: Finding) -> bool:
    """Should a person hear of it?"""
    if finding.confidence < LEAST_CONFIDENCE:
        return False
    if is_warning(finding):
        return True
    return finding.confidence * math.log(expected_gain(finding)) >= math.log(
        LEAST_GAIN[finding.effort]
    )


def worth(finding: Finding) -> float:
    """Expected gain per effort; higher comes first."""
    gain = WARNING_GAIN if is_warning(finding) else expected_gain(finding)
    return finding.confidence * math.log(gain) / EFFORT[finding.effort]


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Those that are worthwhile, most worthwhile first."""
    return sorted(filter(is_worthwhile, findings), key=lambda f: (-worth(f), f.cause))
