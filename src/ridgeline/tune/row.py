"""An A/B run written down as a row of the ledger: its numbers, its verdict and the reason for it.

Ratio, interval and both step times of a row come from the same rounds by the same statistic, so
that whoever divides one by the other finds the ratio that stands beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from msgspec.structs import replace

from ridgeline.measure.statistics.sequential import side_by_side
from ridgeline.measure.wire import Applied
from ridgeline.records import LedgerRow, LossCheck
from ridgeline.records.ledger import Options
from ridgeline.techniques import all_techniques
from ridgeline.tune.ab_result import ABRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a row is about."""

    technique: str
    stage: str
    options: Options = field(default_factory=dict)
    together: dict[str, Options] = field(default_factory=dict)

    @classmethod
    def of(cls, added: list[Applied], name: str, stage: str) -> Self:
        """A question about techniques that are added, or about something with a name."""
        if name:
            return cls(technique=name, stage=stage)
        if len(added) == 1:
            return cls(technique=added[0].technique, options=added[0].options, stage=stage)
        return cls(
            technique=" + ".join(member.technique for member in added),
            together={member.technique: member.options for member in added},
            stage=stage,
        )


def needed(stage: str, threshold: float) -> float:
    """What the lower end of a ratio's interval must exceed for the row to be kept."""
    return 1 + threshold if stage == "add" else 1.0


def measured(asked: Asked, result: ABRun, check: LossCheck, threshold: float) -> LedgerRow:
    """The row of a finished A/B run."""
    interval = result.interval
    finite = result.b_non_finite == 0
    verified = check.passed and finite
    bar = needed(asked.stage, threshold)
    before, after = side_by_side(result.a_rounds, result.b_rounds, interval.ratio)
    return LedgerRow(
        technique=asked.technique,
        options=asked.options,
        together=asked.together,
        stage=asked.stage,
        multiplier=interval.ratio,
        ci_low=interval.low,
        ci_high=interval.high if math.isfinite(interval.high) else interval.ratio,
        cumulative=1.0,
        step_seconds=after,
        baseline_step_seconds=before,
        peak_memory_bytes=result.b_peak_memory_bytes,
        verified=verified,
        verification=f"{check.kind}: {check.summary}; gradients "
        + ("finite" if finite else "not finite"),
        kept=interval.low > bar and verified,
        reason=_reason(result, check, finite=finite, bar=bar) + _by_cpu_time(asked, result, bar),
        loss_check=replace(check, untold=check.untold and finite),
        rounds=interval.rounds,
        startup_seconds=result.startup_seconds,
    )


def not_measured(asked: Asked, reason: str, step_seconds: float) -> LedgerRow:
    """The row of a question without numbers: a side failed, or nothing was changed."""
    return LedgerRow(
        technique=asked.technique,
        options=asked.options,
        together=asked.together,
        stage=asked.stage,
        multiplier=1.0,
        ci_low=0.0,
        ci_high=1.0,
        cumulative=1.0,
        step_seconds=step_seconds,
        baseline_step_seconds=step_seconds,
        peak_memory_bytes=0,
        verified=False,
        verification="not measured",
        kept=False,
        reason=reason,
    )


def is_unclear(row: LedgerRow, threshold: float) -> bool:
    """Was what it would add measured and found neither faster nor not?"""
    asked = row.stage == "add" and row.rounds > 0
    return asked and row.ci_low <= 1 + threshold < row.ci_high


def did_harm(rows: Iterable[LedgerRow], name: str) -> bool:
    """Was a technique by itself slower beyond doubt, whatever its settings were?"""
    measured_alone = (row for row in rows if row.stage == "add" and row.technique == name)
    return any(row.rounds > 0 and row.ci_high < 1 for row in measured_alone)


def gained_nothing(rows: Iterable[LedgerRow], name: str, threshold: float) -> bool:
    """Did a technique by itself not even look faster? Not where it was kept or looked so once."""
    alone = [r for r in rows if r.stage == "add" and r.technique == name and r.rounds > 0]
    return bool(alone) and all(row.multiplier <= 1 + threshold for row in alone)


def _by_cpu_time(asked: Asked, result: ABRun, bar: float) -> str:
    """What CPU times tell of a gain that step times leave open; empty where they do not either.

    On a busy machine a step waits for its cores, and few rounds do not say what it takes on a
    quiet one. The CPU time that it uses says more, unless work moves between threads or processes
    (and threads that spin while they wait for each other use some of it). It is told, and keeps no
    row: what a row promises is the time of a step.
    """
    interval, cpu = result.interval, result.cpu_interval
    names = asked.together or {asked.technique: asked.options}
    known = all_techniques()
    moves = any(name not in known or known[name].CARD.moves_work for name in names)
    if moves or not interval.low <= bar < interval.high or cpu.low <= bar:
        return ""
    return f"; in CPU time {cpu.in_words}: measure again on a quiet machine"


def _reason(result: ABRun, check: LossCheck, *, finite: bool, bar: float) -> str:
    interval = result.interval
    if interval.rounds == 0:
        why = result.too_short or "the script is too short, or the time ran out"
        return f"no round could be measured: {why}"
    figures = interval.in_words
    if interval.high < bar:
        return f"not faster: {figures}"
    if interval.low <= bar:
        return f"not faster beyond doubt: {figures}"
    if not check.passed:
        return f"rejected, {check.summary} ({figures})"
    if not finite:
        return f"rejected, gradients are not finite ({figures})"
    return f"kept, {figures}"
