"""Where the time of a step goes, phase by phase: of one run, or of two beside each other."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline import quantity
from ridgeline.records import StepProfile
from ridgeline.report import document as doc
from ridgeline.report import figures
from ridgeline.report.plots import PHASES, Look

Runs = Sequence[tuple[str, StepProfile]]
"""Labelled profiles that are shown beside each other, the newest last."""
SMALLEST_SHARE = 0.0005
"""Phases below this share of the step are left out of pictures."""


def phase_sections(runs: Runs, samples: dict[str, list[float]]) -> list[doc.Block]:
    """The mean step by phase, one bar per run on one scale, and the time of every step."""
    shown: list[doc.Block] = []
    if any(run.phases for _, run in runs):
        bars = [_phase_bar(label if len(runs) > 1 else "", run) for label, run in runs]
        legend = _one_legend(runs[0][1]) if len(runs) == 1 else _joint_legend(runs)
        shown.append(doc.Chapter("Where a step goes", [doc.Bars(bars, legend)], "Mean by phase."))
    labels = {"baseline": "as it stood"}
    series = [(labels.get(name, name), values) for name, values in samples.items()]
    if not any(values for _, values in series):
        series = [(label, run.step_samples) for label, run in runs]
    times = doc.figure("steps", figures.step_times(series))
    return [*shown, doc.Only("page", [doc.Chapter("Every timed step", times)])]


def phases(profile: StepProfile) -> dict[str, float]:
    """The share of the mean step of each phase that took part, in the order of a step."""
    total = sum(phase.mean for phase in profile.phases.values()) or 1.0
    shares = {name: phase.mean / total for name, phase in profile.phases.items()}
    return {name: share for name, share in shares.items() if share >= SMALLEST_SHARE}


def look_of(phase: str) -> Look:
    """The look of a phase, one that we do not know included."""
    return PHASES.get(phase, PHASES["other"])


def _phase_bar(label: str, run: StepProfile) -> doc.Bar:
    means = {name: run.phases[name].mean for name in phases(run)}
    parts = [
        doc.BarPart(name, mean, quantity.seconds(mean), look_of(name))
        for name, mean in means.items()
    ]
    return doc.Bar(label, quantity.seconds(sum(means.values())), parts)


def _one_legend(run: StepProfile) -> doc.DataTable:
    fields = ("mean", "p50", "p95", "p99")
    times = (doc.Column("seconds", field) for field in fields)
    rows = [
        (
            doc.Key(phase, look_of(phase)),
            share,
            *(getattr(run.phases[phase], field) for field in fields),
        )
        for phase, share in phases(run).items()
    ]
    return doc.DataTable((doc.words("phase"), doc.Column("share"), *times), rows)


def _joint_legend(runs: Runs) -> doc.DataTable:
    seen = {phase for _, run in runs for phase in phases(run)}
    rows = [
        (doc.Key(phase, look_of(phase)),
         *(run.phases[phase].mean if phase in run.phases else None for _, run in runs))
        for phase in runs[0][1].phases if phase in seen
    ]  # fmt: skip
    return doc.DataTable(
        (doc.words("phase"), *(doc.Column("seconds", label) for label, _ in runs)), rows
    )
