"""The diagnosis of one script: every rule on every rank, ranked, with a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ridgeline.diagnose.ranking import LEAST_CONFIDENCE, is_warning, ranked
from ridgeline.diagnose.reading import Reading
from ridgeline.diagnose.rules import all_rules
from ridgeline.diagnose.verdict import verdict
from ridgeline.hardware.ceilings import Ceilings
from ridgeline.hardware.storage import StorageRates
from ridgeline.records import Finding, StepProfile, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What bounds a script, and what is worth doing about it."""

    verdict: Verdict
    findings: tuple[Finding, ...]
    """Most worthwhile first; empty: nothing is worth doing."""
    limit_fraction: float
    """How much of the step the hardware itself needs: 1 is its limit."""


def diagnose(
    profiles: Sequence[StepProfile],
    ceilings: Ceilings | None = None,
    storage: StorageRates | None = None,
) -> Diagnosis:
    """Judge what was measured: one profile per rank, rank 0 first.

    A cause that several ranks show is reported once, as the rank tells it on which it costs most.
    """
    if not profiles:
        raise ValueError("there is no profile to diagnose")
    readings = [
        Reading(profile=profile, ranks=tuple(profiles), ceilings=ceilings, storage=storage)
        for profile in profiles
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
        findings=tuple(_as_sure_as(readings[0], ranked(found.values()))),
        limit_fraction=profiles[0].limit_fraction,
    )


def _as_sure_as(reading: Reading, findings: Sequence[Finding]) -> list[Finding]:
    """The findings in their order, none surer than the measured times allow.

    Where other programs held the cores, what was timed was in part their work.
    """
    profile = reading.profile
    if not profile.is_crowded or any(one.cause == "many-threads" for one in findings):
        return list(findings)
    most = max(LEAST_CONFIDENCE, 1.0 - profile.crowded_share)
    return [
        one
        if is_warning(one) or one.cause == "crowded-threads"
        else msgspec.structs.replace(one, confidence=min(one.confidence, most))
        for one in findings
    ]
