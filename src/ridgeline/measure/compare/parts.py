"""Runs of several parts, sinks of a pipeline or exported formats, compared part by part.

One sink may grow slow while another stays, so each is judged by itself, and the run is slower where
one is. Each of k parts gets a k-th of the error (Bonferroni), so that more parts raise no more
false alarms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from ridgeline.errors import InputError
from ridgeline.measure.compare.runs import PART_WORDS, Run

if TYPE_CHECKING:
    from ridgeline.measure.compare.comparison import Comparison

_RANKS = {"slower": 2, "faster": 1, "no difference": 0}


class PartChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One sink of a pipeline, or one exported format, in both runs."""

    name: str
    verdict: str
    reference_seconds: float
    """Median age of a sink's results, or time of a format's call."""
    new_seconds: float
    ratio: float
    """New over reference of what was judged: the median, or the metric that was asked for."""
    ci_low: float | None
    ci_high: float | None


def common_parts(reference: Run, new: Run) -> list[str]:
    """Sinks or formats with times in both runs.

    Raises:
        InputError: A part that both have was timed in one of them only.
    """
    shared = [name for name in reference.parts if name in new.parts]
    for name in shared:
        if bool(reference.parts[name]) != bool(new.parts[name]):
            silent = new if reference.parts[name] else reference
            raise InputError(
                f"{silent.source}: no {silent.unit} of {name} was timed, and some were in the other"
                " run; ridgeline realtime run and export say what became of them"
            )
    return [name for name in shared if reference.parts[name]]


def only_part(run: Run, name: str) -> Run:
    """The run as its one part saw it."""
    return replace(run, samples=run.parts[name])


def decided_among(found: Mapping[str, Comparison], warnings: list[str]) -> Comparison:
    """The comparison of the part that decides, the slowest or else the fastest, with all others."""

    def weight(name: str) -> tuple[int, float]:
        one = found[name]
        change = one.metric_slowdown or one.slowdown
        if one.decided_by == "mean":
            change = one.mean_slowdown
        return _RANKS[one.verdict], abs(math.log(change.ratio))

    name = max(found, key=weight)
    rows = [_row(one, comparison) for one, comparison in found.items()]
    decisive = found[name]
    return msgspec.structs.replace(
        decisive, part=name, parts=rows, warnings=[*decisive.warnings, *warnings]
    )


def other_parts(reference: Run, new: Run) -> list[str]:
    """What to warn of where the runs have different parts."""
    lone = [
        f"{run.source}: the {PART_WORDS[run.unit]} {name} is not in the other run,"
        " and was not compared"
        for run, other in ((reference, new), (new, reference))
        for name in run.parts
        if name not in other.parts
    ]
    return lone if reference.parts and new.parts else []


def _row(name: str, one: Comparison) -> PartChange:
    change = one.metric_slowdown or one.slowdown
    if one.decided_by == "mean":
        change = one.mean_slowdown
    return PartChange(
        name=name,
        verdict=one.verdict,
        reference_seconds=one.reference.step_seconds.p50,
        new_seconds=one.new.step_seconds.p50,
        ratio=change.ratio,
        ci_low=change.ci_low,
        ci_high=change.ci_high,
    )
