"""Each profiler step with its phases, the variation, and the outlier: `step_times(trace)`.

Phases are the host's: data (inside the loader's iterator), optimizer (`Optimizer.step`), backward
(the autograd engine's evaluations, on whatever thread), forward (other operators), other (none of
them). Each moment belongs to the first of these that covers it, so that the phases add up to the
step. A step reaches from its start to the start of the next; the last one in a trace ends with its
own mark.
"""

from __future__ import annotations

import re

import msgspec
import numpy as np

from ridgeline.trace.columns import Category, Floats, Mask, Trace
from ridgeline.trace.host_calls import names_matching
from ridgeline.trace.intervals import covered, difference, union
from ridgeline.trace.kernel_names import is_communication
from ridgeline.trace.profiler_steps import ProfilerStep, profiler_steps
from ridgeline.trace.sorting import median, quantile
from ridgeline.trace.time.idle import LOADER
from ridgeline.trace.windows import RankRecord

PHASES = ("data", "optimizer", "backward", "forward", "other")
_OPTIMIZER = re.compile(r"^Optimizer\.(step|zero_grad)#")
_BACKWARD = re.compile(r"^autograd::engine::|Backward\d*$")
_OUTLIER_DEVIATIONS = 3.5
"""Median absolute deviations, scaled to a normal distribution's σ (Iglewicz and Hoaglin, 1993)."""
_OUTLIER_SHARE = 0.05
"""An outlier is also longer or shorter than the median by this share at least."""


class StepPhases(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One profiler step with its phases."""

    number: int
    start_us: float
    length_us: float
    whole: bool
    """Is its successor in the trace, so that its end is certain?"""
    phases_us: dict[str, float]
    gpu_busy_us: float
    gpu_idle_us: float
    communication_exposed_us: float
    outlier: bool


class StepQuartiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one figure varies over the whole steps of a rank."""

    name: str
    """What it is about: `length`, a phase, `gpu busy`, `gpu idle` or `communication exposed`."""
    min_us: float
    lower_us: float
    """A quarter of the steps lies below it."""
    median_us: float
    upper_us: float
    """A quarter of the steps lies above it."""
    max_us: float


class RankSteps(RankRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The steps of one rank: ProfilerSteps, else numbered iterations of the user's."""

    called: str | None
    """What the first step is called, such as `ProfilerStep#3` or `iter 0`; None without steps."""
    steps: list[StepPhases]
    quartiles: list[StepQuartiles]
    """Over whole steps, of their lengths and of each of their parts."""
    mean_us: float | None
    """Over whole steps, as are the figures below."""
    median_us: float | None
    spread_us: float | None
    """Standard deviation; None below two steps."""
    phases_us: dict[str, float]
    """The mean per step."""
    outlier: int | None
    """Number of the step furthest from the median, where it stands out."""


def step_times(trace: Trace) -> RankSteps:
    """The steps of a trace; none where nothing marks them."""
    found = profiler_steps(trace)
    if not found:
        return RankSteps(
            file=trace.file, rank=trace.rank, called=None, steps=[], quartiles=[], mean_us=None,
            median_us=None, spread_us=None, phases_us={}, outlier=None,
        )  # fmt: skip
    start = np.array([step.start_us for step in found])
    end = np.append(start[1:], max(found[-1].end_us, found[-1].start_us))
    last_is_whole = len(found) == 1
    lengths = end - start
    certain = lengths if last_is_whole else lengths[:-1]
    odd = _outliers(certain)
    rows = _rows(trace, found, start, end, odd)
    whole = rows if last_is_whole else rows[:-1]
    return RankSteps(
        file=trace.file,
        rank=trace.rank,
        called=found[0].name,
        steps=rows,
        quartiles=_quartiles(whole),
        mean_us=float(certain.mean()),
        median_us=median(certain),
        spread_us=float(certain.std(ddof=1)) if len(certain) > 1 else None,
        phases_us={
            phase: float(np.mean([row.phases_us[phase] for row in whole])) for phase in PHASES
        },
        outlier=_worst(found, certain, odd),
    )


def _quartiles(whole: list[StepPhases]) -> list[StepQuartiles]:
    figures = {
        "length": [step.length_us for step in whole],
        **{phase: [step.phases_us[phase] for step in whole] for phase in PHASES},
        "gpu busy": [step.gpu_busy_us for step in whole],
        "gpu idle": [step.gpu_idle_us for step in whole],
        "communication exposed": [step.communication_exposed_us for step in whole],
    }
    found = []
    for name, values in figures.items():
        low, lower, middle, upper, high = (
            quantile(np.array(values), share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)
        )
        found.append(
            StepQuartiles(
                name=name, min_us=low, lower_us=lower, median_us=middle, upper_us=upper, max_us=high
            )
        )
    return found


def _rows(
    trace: Trace, found: tuple[ProfilerStep, ...], start: Floats, end: Floats, odd: Mask
) -> list[StepPhases]:
    phases = _phases(trace, start, end)
    gpu, talks = trace.gpu, is_communication(trace)
    ends = gpu.end_us
    busy = covered(union(gpu.start_us, ends), start, end)
    exposed = difference(union(gpu.start_us[talks], ends[talks]),
                         union(gpu.start_us[~talks], ends[~talks]))  # fmt: skip
    waiting = covered(exposed, start, end)
    return [
        StepPhases(
            number=step.number,
            start_us=step.start_us,
            length_us=float(end[place] - start[place]),
            whole=place < len(found) - 1 or len(found) == 1,
            phases_us={phase: float(phases[phase][place]) for phase in PHASES},
            gpu_busy_us=float(busy[place]),
            gpu_idle_us=float(end[place] - start[place] - busy[place]),
            communication_exposed_us=float(waiting[place]),
            outlier=bool(place < len(odd) and odd[place]),
        )
        for place, step in enumerate(found)
    ]


def _phases(trace: Trace, start: Floats, end: Floats) -> dict[str, Floats]:
    host = trace.host
    phases: dict[str, Floats] = {}
    so_far = np.zeros(len(host), bool)
    below = np.zeros(len(start))
    for name, rows in _marks(trace).items():
        so_far = so_far | rows
        begun = host.start_us[so_far]
        share = covered(union(begun, begun + host.duration_us[so_far]), start, end)
        phases[name] = share - below
        below = share
    phases["other"] = end - start - below
    return phases


def phase_at(trace: Trace, moments_us: Floats) -> list[str]:
    """The phase of the step that each moment belongs to."""
    host = trace.host
    found = np.full(len(moments_us), len(PHASES) - 1)
    for number, rows in reversed(list(enumerate(_marks(trace).values()))):
        spans = union(host.start_us[rows], host.ends_of(rows))
        if not spans.size:
            continue
        places = np.searchsorted(spans.start, moments_us, "right") - 1
        found[(places >= 0) & (spans.end[places] > moments_us)] = number
    return [PHASES[number] for number in found.tolist()]


def _marks(trace: Trace) -> dict[str, Mask]:
    """Host events of each phase but the last, in the order in which they take a moment."""
    return trace.derived("phase marks", _phase_marks)


def _phase_marks(trace: Trace) -> dict[str, Mask]:
    host = trace.host
    operators = host.category == Category.OPERATOR
    marks = operators | (host.category == Category.ANNOTATION)
    step_names = names_matching(trace, re.compile(r"^ProfilerStep"))[host.name]
    return {
        "data": names_matching(trace, LOADER)[host.name],
        "optimizer": marks & names_matching(trace, _OPTIMIZER)[host.name],
        "backward": operators & names_matching(trace, _BACKWARD)[host.name],
        "forward": operators & ~step_names,
    }


def _outliers(lengths: Floats) -> Mask:
    middle = median(lengths)
    away = np.abs(lengths - middle)
    scale = 1.4826 * median(away)
    odd: Mask = (away > _OUTLIER_DEVIATIONS * scale) & (away > _OUTLIER_SHARE * middle)
    return odd & (len(lengths) >= 3)


def _worst(found: tuple[ProfilerStep, ...], lengths: Floats, odd: Mask) -> int | None:
    if not odd.any():
        return None
    away = np.where(odd, np.abs(lengths - median(lengths)), -1.0)
    return found[int(np.argmax(away))].number
