"""Is one recorded run slower than another, beyond noise? The judgement behind `compare`.

`compare_runs` puts two runs side by side that `runs.py` has read. Both were measured on their own,
so the ratio of their step times comes from a block bootstrap; see `statistics.py` for what it
assumes. No torch, no output.
"""

from __future__ import annotations

import math

import msgspec

from ridgeline.errors import InputError
from ridgeline.measure.compare.parts import (
    PartChange,
    common_parts,
    decided_among,
    only_part,
    other_parts,
)
from ridgeline.measure.compare.readers import Origin
from ridgeline.measure.compare.runs import PART_WORDS, Run
from ridgeline.measure.statistics.intervals import RatioInterval, bootstrap_ratio
from ridgeline.measure.statistics.metric import (
    SampleMetric,
    independent_samples,
    metric_slowdown,
    samples_needed,
)
from ridgeline.records.measurement import Distribution
from ridgeline.records.profile import PHASES

CONFIDENCE = 0.95
FEW_SAMPLES = 20
"""Below this an interval is honest but wide; the reader is told."""


class Side(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the two runs, as far as the comparison needs it."""

    source: str
    """The file that it was read from."""
    record: str
    """Its kind, as `runs.py` names them."""
    unit: str
    """What is timed, called a step here: `step`, `decode step`, `forward pass`, `request`, …"""
    step_seconds: Distribution
    steps: int
    peak_memory_bytes: int
    origin: Origin


class PhaseChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one phase of the step took in both runs, on average."""

    name: str
    reference_seconds: float
    new_seconds: float
    difference_seconds: float


class Slowdown(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New over reference, so above 1 is slower; the bounds are None where nothing bounds it."""

    ratio: float
    ci_low: float | None
    ci_high: float | None


class Comparison(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer of `ridgeline compare`."""

    verdict: str
    """`faster`, `slower` or `no difference` (beyond noise and threshold)."""
    slowdown: Slowdown
    """How much longer the median step takes."""
    mean_slowdown: Slowdown
    """How much longer the mean step takes: rare long steps count in it, and it alone can also make
    a run slower."""
    decided_by: str | None
    """`median`, `mean` or the metric asked for; None when there is no difference."""
    threshold: float
    confidence: float
    reference: Side
    new: Side
    phases: list[PhaseChange]
    """The phases, largest change first."""
    slower_phase: str | None
    """The phase that grew most, where the verdict is `slower` by the median or the mean."""
    peak_memory_ratio: float | None
    """New over reference; None where either was not measured."""
    warnings: list[str]
    """What makes the two runs hard to compare."""
    metric: str | None = None
    """The only figure that decides, by `--metric`; None: the median, and the mean."""
    metric_slowdown: Slowdown | None = None
    """How much that figure grew; None where none was asked for."""
    part: str | None = None
    """The sink or format that decided, whose figures these are; None where runs have no several."""
    parts: list[PartChange] = []
    """Every sink or format that both runs have; empty where there are no several."""

    @property
    def part_word(self) -> str:
        """What a part is called: sink or format."""
        return PART_WORDS[self.new.unit]


def compare_runs(
    reference: Run, new: Run, *, threshold: float = 0.02, metric: SampleMetric | None = None
) -> Comparison:
    """Put two runs side by side; see `Comparison` for what the answer means.

    Slower: the interval of the median's or of the mean's slowdown lies above 1 + threshold.
    Faster: the interval of the median's lies below 1 / (1 + threshold). With a metric, its
    interval alone decides, both ways; runs too short to bound it are refused.
    """
    if not (math.isfinite(threshold) and threshold >= 0):
        raise InputError(f"--threshold {threshold}: must be 0 or above (0.02 means 2 %)")
    if reference.unit != new.unit:
        raise InputError(
            f"{reference.source} times each {reference.unit} and {new.source} each {new.unit};"
            " compare like with like"
        )
    names = common_parts(reference, new)
    lone = other_parts(reference, new)
    if reference.parts and new.parts and not names:
        word = PART_WORDS[new.unit]
        raise InputError(f"{reference.source} and {new.source} have no {word} in common")
    if not names:
        return _judged(reference, new, threshold, metric, CONFIDENCE)
    confidence = 1 - (1 - CONFIDENCE) / len(names)
    found = {
        name: _judged(
            only_part(reference, name), only_part(new, name), threshold, metric, confidence
        )
        for name in names
    }
    if len(names) == 1 and not lone:
        return found[names[0]]
    return decided_among(found, lone)


def _judged(
    reference: Run, new: Run, threshold: float, metric: SampleMetric | None, confidence: float
) -> Comparison:
    median = bootstrap_ratio(new.samples, reference.samples, confidence, statistic="median")
    mean = bootstrap_ratio(new.samples, reference.samples, confidence, statistic="mean")
    asked: RatioInterval | None = None
    if metric is None:
        verdict, decided_by = _verdict(median, mean, threshold)
    else:
        for run in (reference, new):
            _refuse_too_few(run, metric, confidence)
        asked = metric_slowdown(metric, new.samples, reference.samples, confidence)
        verdict, decided_by = _verdict_of(asked, metric, threshold)
    phases = _phase_changes(reference.phases, new.phases)
    grown = [phase for phase in phases if phase.difference_seconds > 0]
    by_centre = verdict == "slower" and decided_by in ("median", "mean")
    memory_known = reference.peak_memory_bytes > 0 and new.peak_memory_bytes > 0
    return Comparison(
        verdict=verdict,
        slowdown=_slowdown(median),
        mean_slowdown=_slowdown(mean),
        decided_by=decided_by,
        threshold=threshold,
        confidence=confidence,
        reference=_side(reference),
        new=_side(new),
        phases=phases,
        slower_phase=grown[0].name if grown and by_centre else None,
        peak_memory_ratio=(
            new.peak_memory_bytes / reference.peak_memory_bytes if memory_known else None
        ),
        warnings=_warnings(reference, new),
        metric=None if metric is None else metric.name,
        metric_slowdown=None if asked is None else _slowdown(asked),
    )


def _verdict(
    median: RatioInterval, mean: RatioInterval, threshold: float
) -> tuple[str, str | None]:
    if median.low > 1 + threshold:
        return "slower", "median"
    if mean.low > 1 + threshold:
        return "slower", "mean"
    if median.high < 1 / (1 + threshold):
        return "faster", "median"
    return "no difference", None


def _verdict_of(
    asked: RatioInterval, metric: SampleMetric, threshold: float
) -> tuple[str, str | None]:
    if asked.low > 1 + threshold:
        return "slower", metric.name
    if asked.high < 1 / (1 + threshold):
        return "faster", metric.name
    return "no difference", None


def _refuse_too_few(run: Run, metric: SampleMetric, confidence: float) -> None:
    """A percentile that nothing bounds is no gate: it would let everything pass."""
    for quantile in (metric.over, metric.under):
        if quantile is None:
            continue
        count, needed = len(run.samples), samples_needed(quantile, confidence)
        worth = independent_samples(run.samples, quantile)
        if count < needed:
            raise InputError(
                f"{run.source}: {count} {run.unit}s cannot bound p{100 * quantile:g}; it takes "
                f"{needed} (--metric {metric.name})"
            )
        if worth < needed:
            more = math.ceil(needed * count / max(worth, 1) / 10) * 10
            raise InputError(
                f"{run.source}: slow {run.unit}s come in clusters, so that {count} are worth "
                f"{worth}, and p{100 * quantile:g} takes {needed}: measure about {more} "
                f"(--metric {metric.name})"
            )


def _slowdown(interval: RatioInterval) -> Slowdown:
    bounded = math.isfinite(interval.high)
    return Slowdown(
        ratio=interval.ratio,
        ci_low=interval.low if bounded else None,
        ci_high=interval.high if bounded else None,
    )


def _side(run: Run) -> Side:
    return Side(
        source=run.source,
        record=run.record,
        unit=run.unit,
        step_seconds=Distribution.of(run.samples),
        steps=len(run.samples),
        peak_memory_bytes=run.peak_memory_bytes,
        origin=run.origin,
    )


def _phase_changes(reference: dict[str, float], new: dict[str, float]) -> list[PhaseChange]:
    names = [*PHASES, *sorted({*reference, *new} - set(PHASES))]
    changes = [
        PhaseChange(
            name=name,
            reference_seconds=reference.get(name, 0.0),
            new_seconds=new.get(name, 0.0),
            difference_seconds=new.get(name, 0.0) - reference.get(name, 0.0),
        )
        for name in names
        if name in reference or name in new
    ]
    return sorted(changes, key=lambda change: -abs(change.difference_seconds))


def _warnings(reference: Run, new: Run) -> list[str]:
    """Everything but the change under test that could have moved the step time."""
    before, after = reference.origin, new.origin
    pairs = [
        ("device", before.device, after.device),
        ("host CPU", before.host_cpu, after.host_cpu),
        ("number of CPUs", before.cpu_count, after.cpu_count),
        ("command", " ".join(before.command), " ".join(after.command)),
        ("kind of run", reference.kind, new.kind),
        ("number of processes", reference.world_size, new.world_size),
        ("torch", before.torch, after.torch),
        ("Python", before.python, after.python),
        ("environment variables", _assignments(before), _assignments(after)),
    ]
    warnings = [
        f"different {name}: {old or 'not recorded'} → {now or 'not recorded'}"
        for name, old, now in pairs
        if old != now
    ]
    for run in (reference, new):
        if not run.steady:
            warnings.append(f"{run.source}: the step time was not steady when it was measured")
        if len(run.samples) < FEW_SAMPLES:
            warnings.append(f"{run.source}: only {len(run.samples)} {run.unit}s; measure more")
    return warnings


def _assignments(origin: Origin) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(origin.variables.items()))
