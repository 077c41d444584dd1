"""From what the child reported to a `StepProfile`: phases, rates, operators on the roofline."""

from __future__ import annotations

import math
import os
import platform
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata

import msgspec
import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.hardware.ceilings import Ceilings
from ridgeline.measure.guard.guardian import Outcome
from ridgeline.measure.tail import tail_facts
from ridgeline.measure.wire import Facts, MemorySample, OperatorCall, Report, StepTimes
from ridgeline.records import (
    Distribution,
    Environment,
    MemoryPoint,
    MemorySplit,
    Operator,
    SideEffects,
    Site,
    StepProfile,
)
from ridgeline.records.profile import PHASES

_SPEED_VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "KMP_AFFINITY", "OMP_PROC_BIND", "LD_PRELOAD",
    "CUDA_VISIBLE_DEVICES", "TORCHINDUCTOR_CACHE_DIR", "ONEDNN_DEFAULT_FPMATH_MODE",
)  # fmt: skip


_BUSY_SHARE = 0.15
"""Share of the step without a core from which the reader is warned."""
FEW_STEPS = 4
_LEAST_GROWTHS = 4
"""So many steps must have been seen to grow before growth is believed."""
_STEADY_SHARE = 0.8


@dataclass(slots=True)
class Windows:
    """Everything that one run gave, by kind of window; lists of reports are one per rank."""

    warmup_seconds: list[float] = field(default_factory=list)
    timed: list[Report] = field(default_factory=list)
    slow: list[list[Report]] = field(default_factory=list)
    """Steps of the warm-up that ran one by one."""
    looks: dict[str, list[Report]] = field(default_factory=dict)
    tried: list[str] = field(default_factory=list)
    """Instruments that were asked for, whether they could look or not."""
    losses: list[list[float]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seen_steps: int = 0
    forwards_without_steps: bool = False
    """The script called a model but ended without a step."""
    ended: bool = False
    complete: bool = False
    steady: bool = False
    ranks: int = 1
    device: str = "cpu"
    """What the script said it runs on."""
    output: str = ""
    outcome: Outcome | None = None
    """What the script would have left."""

    def saw(self, reports: list[Report]) -> None:
        """Take note of a block on every rank."""
        if not self.losses:
            self.losses = [[] for _ in reports]
        for losses, report in zip(self.losses, reports, strict=True):
            losses.extend(report.losses)
        self.seen_steps += len(reports[0].steps)
        for report in reports:
            self.warnings += [w for w in report.warnings if w not in self.warnings]
        if any(report.ended for report in reports):
            self.ended = True
            self.forwards_without_steps = self.seen_steps == 0 and reports[0].forwards_seen > 0

    def seconds(self) -> list[float]:
        """Of the steps that were timed; of the last that came before, when there are none."""
        if self.timed and self.timed[0].steps:
            return [step.seconds for step in self.timed[0].steps]
        return [step.seconds for reports in self.slow[-1:] for step in reports[0].steps]

    def settle(self) -> None:
        """Let the last slow step speak where none could be timed, and say how few there are."""
        if not (self.timed and self.timed[0].steps) and self.seconds():
            self.timed = self.slow[-1]
            self.warmup_seconds = self.warmup_seconds[:-1]
            self.steady = False
        if 0 < len(self.seconds()) < FEW_STEPS and max(self.seconds()) > 1.0:
            few = len(self.seconds())
            self.warnings.append(
                f"from {few} step{'s' if few > 1 else ''}: there was no time for more, and what "
                "one step differs from another is not known; --budget gives it more"
            )

    def look(self, name: str, rank: int) -> Report | None:
        """What an instrument reported on one rank; None when it did not run."""
        reports = self.looks.get(name)
        return reports[rank] if reports else None


def assemble(command: list[str], windows: Windows, ceilings: Ceilings | None) -> list[StepProfile]:
    """One profile per rank."""
    return [_profile(command, windows, rank, ceilings) for rank in range(len(windows.timed))]


def _profile(
    command: list[str], windows: Windows, rank: int, ceilings: Ceilings | None
) -> StepProfile:
    timed = windows.timed[rank]
    facts = _latest_facts(windows, rank)
    warnings = list(windows.warnings)
    if ceilings is not None and ceilings.device != facts.device_name.split()[0]:
        warnings.append(
            f"the model is on {facts.device_name}, but the probed peaks are those of "
            f"{ceilings.device}: no limits are given"
        )
        ceilings = None
    seconds = [step.seconds for step in timed.steps]
    operator_look = windows.look("operators", rank)
    profiler_look = windows.look("profiler", rank)
    sampler_look = windows.look("sampler", rank)
    exposed = profiler_look.communication if profiler_look else {}
    phases = _phases(timed.steps, exposed.get("exposed", 0.0), exposed.get("copy", 0.0))
    operators = _operators(operator_look, profiler_look, phases, ceilings)
    median = Distribution.of(seconds).p50
    flops = sum(op.flops for op in operators)
    limit = sum(op.limit_seconds for op in operators)
    total = sum(seconds)
    samples = sum(step.samples for step in timed.steps)
    tokens = sum(step.tokens for step in timed.steps)
    peak, split, timeline = _memory(operator_look, profiler_look)
    calls = sum(op.calls for op in operators)
    return StepProfile(
        kind=facts.kind,
        steps=len(seconds),
        step_seconds=Distribution.of(seconds),
        phases=phases,
        samples_per_second=samples / total if samples else None,
        tokens_per_second=tokens / total if tokens else None,
        peak_memory_bytes=peak,
        device_memory_bytes=facts.device_memory_bytes,
        mfu=_mfu(operators, flops, median, ceilings),
        flops_per_step=flops,
        limit_seconds=limit,
        limit_fraction=min(1.0, limit / median) if median else 0.0,
        memory=split,
        memory_timeline=timeline,
        memory_growth_bytes_per_step=_growth(sampler_look),
        operators=operators[:400],
        operator_calls=calls,
        small_operator_share=_small_share(operators, median, ceilings),
        sync_points=[
            *timed.sync_points,  # what was printed; the dispatch mode sees the others
            *(operator_look.sync_points if operator_look else []),
        ],
        hot_lines=sampler_look.hot_lines if sampler_look else [],
        graph_breaks=facts.graph_breaks,
        models=facts.models,
        optimizers=facts.optimizers,
        loaders=facts.loaders,
        settings=facts.settings,
        losses=windows.losses[rank],
        gradient_norms=operator_look.gradient_norms if operator_look else [],
        non_finite=_non_finite(windows.losses[rank], operator_look),
        step_samples=seconds,
        tail=tail_facts(timed.steps),
        environment=_environment(command, facts),
        rank=rank,
        world_size=windows.ranks,
        warmup_steps=len(windows.warmup_seconds),
        steady=windows.steady,
        warnings=[*warnings, *_busy_warning(facts, Distribution.of(seconds).mean)],
        side_effects=_side_effects(windows.outcome),
    )


def _side_effects(outcome: Outcome | None) -> SideEffects | None:
    if outcome is None:
        return None
    return SideEffects(
        protection=outcome.way,
        files=outcome.count,
        first_files=list(outcome.first),
        unprotected=outcome.unprotected,
        offline=outcome.offline,
    )


def _busy_warning(facts: Facts, step_seconds: float) -> list[str]:
    """A step that waited for a core says little about the script alone."""
    share = facts.settings.cpu_wait_seconds / step_seconds if step_seconds else 0.0
    if share < _BUSY_SHARE:
        return []
    # The report at the window's end waits too: on a crowded machine that can exceed the steps.
    warning = (
        f"the script waited for a free core for {min(share, 1.0):.0%} of the time: other programs "
        "ran, or it has more threads and workers than cores; measure again on a quiet machine"
    )
    return [warning]


def _latest_facts(windows: Windows, rank: int) -> Facts:
    """Facts of the timed window, completed by what only the instruments could see."""
    timed = windows.timed[rank].facts
    last = next(
        (
            report.facts
            for name in ("profiler", "operators")
            if (report := windows.look(name, rank)) is not None and report.facts is not None
        ),
        None,
    )
    if timed is None:
        timed = last
    if timed is None:  # what failed there has been noted
        raise RidgelineError(f"what the script uses could not be read: {windows.warnings[-1]}")
    if last is None:
        return timed
    seen = last.settings
    settings = msgspec.structs.replace(
        timed.settings,
        math_attention=seen.math_attention,
        math_attention_site=seen.math_attention_site,
        convolutions_channels_first=seen.convolutions_channels_first,
        copy_from_pageable=seen.copy_from_pageable,
        all_reduces_per_step=seen.all_reduces_per_step,
        communication_bytes=seen.communication_bytes,
        graph_compiles=seen.graph_compiles,
        padding_share=seen.padding_share,
    )
    padding = {_key(loader.site): loader.padding_share for loader in last.loaders}
    loaders = [
        msgspec.structs.replace(loader, padding_share=padding.get(_key(loader.site), 0.0))
        for loader in timed.loaders
    ]
    return msgspec.structs.replace(timed, settings=settings, loaders=loaders)


def _key(site: Site | None) -> str:
    return str(site)


def _phases(
    steps: list[StepTimes], exposed_seconds: float, copy_seconds: float
) -> dict[str, Distribution]:
    """Distribution per phase.

    Communication that runs inside backward (DDP's own) is moved out of it in proportion, by what
    the profiler saw exposed; so are copies out of what is left over.
    """
    table: dict[str, list[float]] = {phase: [] for phase in PHASES}
    backward = sum(step.phases.get("backward", 0.0) for step in steps) / len(steps)
    blocking = sum(step.phases.get("communication", 0.0) for step in steps) / len(steps)
    hidden = max(0.0, exposed_seconds - blocking)
    moved = min(1.0, hidden / backward) if backward else 0.0
    for step in steps:
        values = dict.fromkeys(PHASES, 0.0)
        for name, seconds in step.phases.items():
            values[name if name in values else "other"] += seconds
        values["communication"] += moved * values["backward"]
        values["backward"] *= 1 - moved
        copied = min(copy_seconds, values["other"])
        values["copy"] += copied
        values["other"] -= copied
        for name, seconds in values.items():
            table[name].append(seconds)
    return {name: Distribution.of(values) for name, values in table.items()}


def _operators(
    look: Report | None,
    profiled: Report | None,
    phases: dict[str, Distribution],
    ceilings: Ceilings | None,
) -> list[Operator]:
    """Operators per step: what they are from the dispatch mode, their time from the profiler.

    Instruments slow a step down. Operators get the share of each phase that they had under the
    instrument, of what the phase takes without it; within a phase they keep their proportions.
    """
    if look is None:
        return []
    steps = max(len(look.steps), 1)
    times = _times(look, profiled, steps)
    by_phase: dict[str, float] = defaultdict(float)
    stalled: dict[str, float] = defaultdict(float)
    for call, (spent, lost) in zip(look.operators, times, strict=True):
        by_phase[_phase(call)] += spent
        stalled[_phase(call)] += lost
    under = _phase_means((profiled or look).steps)
    scale = {}
    for name, total in by_phase.items():
        covered = min(1.0, (total + stalled[name]) / under[name]) if under[name] else 1.0
        usual = phases[name].p50 or phases[name].mean
        scale[name] = covered * usual / total if total else 1.0
    rows = [
        _operator(call, spent * scale[_phase(call)], steps, ceilings)
        for call, (spent, _) in zip(look.operators, times, strict=True)
    ]
    return sorted(rows, key=lambda op: -op.seconds)


def _phase(call: OperatorCall) -> str:
    return call.phase if call.phase in PHASES else "other"


def _phase_means(steps: list[StepTimes]) -> dict[str, float]:
    """Mean seconds per phase; phases that are not a profile's own belong to `other`."""
    means: dict[str, float] = defaultdict(float)
    for step in steps:
        for name, seconds in step.phases.items():
            means[name if name in PHASES else "other"] += seconds / len(steps)
    return means


def _times(look: Report, profiled: Report | None, steps: int) -> list[tuple[float, float]]:
    """Seconds per step of each row of `look`, and the stalls on top.

    Its calls at the profiler's time per call of the same operator and shapes, or of the
    operator's other shapes where shapes are not told.
    """
    if profiled is None:
        return [(call.seconds / steps, 0.0) for call in look.operators]
    exact = {(row.name, row.shapes): row for row in profiled.profiler}
    known = {(call.name, call.shapes) for call in look.operators}
    rest: dict[str, list[OperatorCall]] = defaultdict(list)
    for row in profiled.profiler:
        if (row.name, row.shapes) not in known:
            rest[row.name].append(row)
    result = []
    for call in look.operators:
        same = exact.get((call.name, call.shapes))
        rows = [same] if same is not None else rest[call.name]
        if not rows:
            result.append((call.seconds / steps, 0.0))
            continue
        part = call.calls / sum(row.calls for row in rows) / steps
        result.append(
            (
                part * sum(row.seconds for row in rows),
                part * sum(row.stalled_seconds for row in rows),
            )
        )
    return result


def _operator(
    call: OperatorCall, seconds: float, steps: int, ceilings: Ceilings | None
) -> Operator:
    limit, bound = 0.0, ""
    if ceilings is not None:
        peak = ceilings.matmul_peak(call.dtype)
        compute = call.flops / steps / peak if peak else 0.0
        memory = call.bytes / steps / ceilings.bandwidth_bytes_per_second
        overhead = call.calls / steps * ceilings.dispatch_seconds
        bound = "compute" if compute >= memory else "memory"
        if overhead > max(compute, memory):
            bound = "overhead"
        limit = min(max(compute, memory), seconds)
    return Operator(
        name=call.name,
        shapes=call.shapes,
        dtype=call.dtype,
        phase=_phase(call),
        calls=call.calls / steps,
        seconds=seconds,
        flops=call.flops / steps,
        bytes=call.bytes / steps,
        bound=bound,
        limit_seconds=limit,
    )


def _small_share(operators: list[Operator], step: float, ceilings: Ceilings | None) -> float:
    """Share of the step that goes into dispatching operators too small to pay for it."""
    if ceilings is None or not step:
        return 0.0
    small = sum(op.calls for op in operators if op.bound == "overhead")
    return min(1.0, small * ceilings.dispatch_seconds / step)


def _mfu(
    operators: list[Operator], flops: float, step: float, ceilings: Ceilings | None
) -> float | None:
    if ceilings is None or not flops or not step:
        return None
    by_dtype: dict[str, float] = defaultdict(float)
    for op in operators:
        by_dtype[op.dtype] += op.flops
    peak = ceilings.matmul_peak(max(by_dtype, key=lambda dtype: by_dtype[dtype]))
    return flops / step / peak if peak else None


def _memory(
    look: Report | None, profiled: Report | None
) -> tuple[int, MemorySplit, list[MemoryPoint]]:
    samples = look.memory if look is not None else []
    points = [MemoryPoint(seconds=s.seconds, bytes=_total(s), phase=s.phase) for s in samples]
    highest = max(samples, key=_total, default=None)
    peak = look.memory_peak_bytes if look is not None else 0
    if profiled is not None and profiled.memory_peak_bytes:
        peak = profiled.memory_peak_bytes
    if highest is None:
        return peak, _NO_SPLIT, points
    rest = max(0, peak - _total(highest))
    split = MemorySplit(
        weights_bytes=highest.weights_bytes,
        gradients_bytes=highest.gradients_bytes,
        optimizer_bytes=highest.optimizer_bytes,
        activations_bytes=highest.activations_bytes,
        other_bytes=highest.other_bytes + rest,
    )
    return max(peak, _total(highest)), split, points


_NO_SPLIT = MemorySplit(
    weights_bytes=0, gradients_bytes=0, optimizer_bytes=0, activations_bytes=0, other_bytes=0
)


def _growth(sampler_look: Report | None) -> float:
    """Bytes that every step leaves behind.

    Batches of different sizes make what is alive at a boundary go up and down; it grows only if
    most steps add about as much as the median step does. What a collection of garbage takes away
    again grows to the next one and no further.
    """
    if sampler_look is None or len(sampler_look.held_bytes) <= _LEAST_GROWTHS:
        return 0.0
    held = sampler_look.held_bytes
    if sampler_look.collected_bytes >= 0.5 * (held[-1] - held[0]) > 0:
        return 0.0
    growths = np.diff(held)
    median = float(np.median(growths))
    steady = median > 0 and float(np.mean(growths >= 0.5 * median)) >= _STEADY_SHARE
    return median if steady else 0.0


def _total(sample: MemorySample) -> int:
    return (
        sample.weights_bytes
        + sample.gradients_bytes
        + sample.optimizer_bytes
        + sample.activations_bytes
        + sample.other_bytes
    )


def _non_finite(losses: list[float], look: Report | None) -> int:
    bad = sum(1 for loss in losses if not math.isfinite(loss))
    return bad + (look.non_finite if look is not None else 0)


def _environment(command: list[str], facts: Facts) -> Environment:
    return Environment(
        command=command,
        cwd=os.getcwd(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        host_cpu=host_cpu(),
        cpu_count=os.cpu_count() or 1,
        device=facts.device_name,
        python=facts.python,
        torch=facts.torch,
        ridgeline=metadata.version("ridgeline"),
        variables={name: os.environ[name] for name in _SPEED_VARIABLES if name in os.environ},
    )


def host_cpu() -> str:
    """The CPU's model name."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux: fall through to what Python knows
    return platform.processor() or platform.machine()
