"""The operators of a profile: how often, how long, and what the roofline allows them.

What they are comes from the dispatch mode, their time from the profiler. Both slow a step down,
so each phase's operators share what the phase takes without them.
"""

from __future__ import annotations

import json
from collections import defaultdict

from ridgeline.hardware.ceilings import Ceilings
from ridgeline.measure.live.steps import phase_means, phase_of
from ridgeline.measure.wire import OperatorCall, Report
from ridgeline.records import Distribution, Operator

SPARSE_PRODUCT = "aten::_sparse_mm"
"""What a product of a sparse matrix is called here; the dispatcher calls it as a dense one."""
MOST_PROFILED = 50_000
"""Operators that a profiled window may have: the profiler keeps some 27 kB of each until the window
is read, 15 GB of a differential equation's step with 560,000."""


def steps_to_profile(steps: int, operators_per_step: float) -> int:
    """So many of these steps a profiler can keep, perhaps none."""
    return min(steps, int(MOST_PROFILED / max(operators_per_step, 1.0)))


def operators_of(
    look: Report | None,
    profiled: Report | None,
    phases: dict[str, Distribution],
    ceilings: Ceilings | None,
) -> list[Operator]:
    """The operators of a step: what they are from the dispatch mode, their time from the profiler.

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
        by_phase[phase_of(call.phase)] += spent
        stalled[phase_of(call.phase)] += lost
    under = phase_means((profiled or look).steps)
    scale = {}
    for name, total in by_phase.items():
        covered = min(1.0, (total + stalled[name]) / under[name]) if under[name] else 1.0
        usual = phases[name].p50 or phases[name].mean
        scale[name] = covered * usual / total if total else 1.0
    rows = [
        _operator(call, spent * scale[phase_of(call.phase)], steps, ceilings)
        for call, (spent, _) in zip(look.operators, times, strict=True)
    ]
    return sorted(rows, key=lambda op: -op.seconds)


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


def _is_sparse(call: OperatorCall) -> bool:
    """Did a product of two matrices multiply few of their elements: was one of them sparse?"""
    shapes = json.loads(f"[{call.shapes}]")[-2:]
    if call.name not in ("aten::mm", "aten::addmm") or [len(one) for one in shapes] != [2, 2]:
        return False
    (rows, depth), (_, columns) = shapes
    return bool(0 < call.flops < call.calls * rows * depth * columns)


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
        name=SPARSE_PRODUCT if _is_sparse(call) else call.name,
        shapes=call.shapes,
        dtype=call.dtype,
        phase=phase_of(call.phase),
        calls=call.calls / steps,
        seconds=seconds,
        flops=call.flops / steps,
        bytes=call.bytes / steps,
        bound=bound,
        limit_seconds=limit,
    )


def small_share(operators: list[Operator], step: float, ceilings: Ceilings | None) -> float:
    """Share of the step that goes into dispatching operators too small to pay for it."""
    if ceilings is None or not step:
        return 0.0
    small = sum(op.calls for op in operators if op.bound == "overhead")
    return min(1.0, small * ceilings.dispatch_seconds / step)


def model_flops_utilisation(
    operators: list[Operator], flops: float, step: float, ceilings: Ceilings | None
) -> float | None:
    """Model FLOPs per second over the probed peak of the dtype in which most of them are."""
    if ceilings is None or not flops or not step:
        return None
    by_dtype: dict[str, float] = defaultdict(float)
    for op in operators:
        by_dtype[op.dtype] += op.flops
    peak = ceilings.matmul_peak(max(by_dtype, key=lambda dtype: by_dtype[dtype]))
    return flops / step / peak if peak else None
