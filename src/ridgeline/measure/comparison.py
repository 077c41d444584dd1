"""Is one recorded run slower than another, beyond noise? The judgement behind `compare`.

Reads whatever Ridgeline wrote that holds per-step samples (`read_run`), and puts two such runs
side by side (`compare_runs`). Both runs were measured on their own, so the ratio of their step
times comes from a block bootstrap; see `statistics.py` for what it assumes. No torch, no output.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.errors import InputError
from ridgeline.measure.statistics import RatioInterval, bootstrap_ratio
from ridgeline.records.distribution import Distribution
from ridgeline.records.input_file import read_json
from ridgeline.records.profile import PHASES

CONFIDENCE = 0.95
FEW_SAMPLES = 20
"""Below this an interval is honest but wide; the reader is told."""
CURE = "give a file that `ridgeline doctor --json` or `ridgeline tune --json` wrote"


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run was measured. Every field may be missing in a file from another version."""

    device: str = ""
    host_cpu: str = ""
    cpu_count: int = 0
    command: list[str] = []
    date: str = ""
    python: str = ""
    torch: str = ""
    ridgeline: str = ""
    variables: dict[str, str] = {}


class Side(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the two runs, as far as the comparison needs it."""

    source: str
    """The file that it was read from."""
    record: str
    """`doctor`, `profile` or `ledger`."""
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
    """Of the median step."""
    mean_slowdown: Slowdown
    """Of the mean step: rare long steps count in it, and it alone can also make a run slower."""
    decided_by: str | None
    """`median` or `mean`; None when there is no difference."""
    threshold: float
    confidence: float
    reference: Side
    new: Side
    phases: list[PhaseChange]
    """Largest change first."""
    slower_phase: str | None
    """The phase that grew most, where the verdict is `slower`."""
    peak_memory_ratio: float | None
    """New over reference; None where either was not measured."""
    warnings: list[str]
    """What makes the two runs hard to compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as read from disk."""

    source: str
    record: str
    kind: str
    samples: list[float]
    phases: dict[str, float]
    peak_memory_bytes: int
    origin: Origin
    world_size: int
    steady: bool


class _Mean(msgspec.Struct):
    """What is read of a phase's distribution."""

    mean: float


class _Measured(msgspec.Struct, kw_only=True):
    """What is read of a profile: other fields may come and go between versions."""

    step_samples: list[float]
    kind: str = "training"
    phases: dict[str, _Mean] = {}
    peak_memory_bytes: int = 0
    environment: Origin = Origin()
    world_size: int = 1
    steady: bool = True


class _Doctor(msgspec.Struct, kw_only=True):
    profile: _Measured


class _Ledger(msgspec.Struct, kw_only=True):
    baseline: _Measured
    tuned: _Measured | None = None
    samples: dict[str, list[float]] = {}


def read_run(path: Path) -> Run:
    """Read the per-step samples of a doctor record, a bare profile, or a ledger (its tuned run)."""
    content = read_json(path, dict[str, Any], cure=CURE)
    try:
        run = _run_of(content, str(path))
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {error}; {CURE}") from None
    if not run.samples:
        raise InputError(f"{path}: holds no step samples; {CURE}")
    for index, seconds in enumerate(run.samples):
        if not (math.isfinite(seconds) and seconds > 0):
            raise InputError(f"{path}: step sample {index} is {seconds}, not a time above 0")
    return run


def _run_of(content: dict[str, Any], source: str) -> Run:
    """Tell the kinds of record apart by their top-level keys."""
    if "profile" in content:
        return _run(source, "doctor", msgspec.convert(content, _Doctor).profile, [])
    if "baseline" in content:
        ledger = msgspec.convert(content, _Ledger)
        samples = ledger.samples.get("tuned") or []
        return _run(source, "ledger", ledger.tuned or ledger.baseline, samples)
    if "step_samples" in content:
        return _run(source, "profile", msgspec.convert(content, _Measured), [])
    raise InputError(f"{source}: holds no step samples; {CURE}")


def _run(source: str, record: str, measured: _Measured, samples: list[float]) -> Run:
    return Run(
        source=source,
        record=record,
        kind=measured.kind,
        samples=samples or measured.step_samples,
        phases={name: phase.mean for name, phase in measured.phases.items()},
        peak_memory_bytes=measured.peak_memory_bytes,
        origin=measured.environment,
        world_size=measured.world_size,
        steady=measured.steady,
    )


def compare_runs(reference: Run, new: Run, *, threshold: float = 0.02) -> Comparison:
    """Put two runs side by side; see `Comparison` for what the answer means.

    Slower: the interval of the median's or of the mean's slowdown lies above 1 + threshold.
    Faster: the interval of the median's lies below 1 / (1 + threshold).
    """
    if not (math.isfinite(threshold) and threshold >= 0):
        raise InputError(f"--threshold {threshold}: must be 0 or above (0.02 means 2 %)")
    median = bootstrap_ratio(new.samples, reference.samples, CONFIDENCE, statistic="median")
    mean = bootstrap_ratio(new.samples, reference.samples, CONFIDENCE, statistic="mean")
    verdict, decided_by = _verdict(median, mean, threshold)
    phases = _phase_changes(reference.phases, new.phases)
    grown = [phase for phase in phases if phase.difference_seconds > 0]
    memory_known = reference.peak_memory_bytes > 0 and new.peak_memory_bytes > 0
    return Comparison(
        verdict=verdict,
        slowdown=_slowdown(median),
        mean_slowdown=_slowdown(mean),
        decided_by=decided_by,
        threshold=threshold,
        confidence=CONFIDENCE,
        reference=_side(reference),
        new=_side(new),
        phases=phases,
        slower_phase=grown[0].name if grown and verdict == "slower" else None,
        peak_memory_ratio=(
            new.peak_memory_bytes / reference.peak_memory_bytes if memory_known else None
        ),
        warnings=_warnings(reference, new),
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
            warnings.append(f"{run.source}: only {len(run.samples)} steps; measure more (--steps)")
    return warnings


def _assignments(origin: Origin) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(origin.variables.items()))
