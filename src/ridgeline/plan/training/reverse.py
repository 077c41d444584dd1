"""The smallest or cheapest cluster that trains this in so many days: the reverse question.

Sizes are tried upwards from what the arithmetic alone needs at full peak: whole fast domains, in
steps of a quarter of a power of two. The smallest is the first that meets the date. The cheapest
is the one of least device-hours times price among all that meet it, up to the size given, over
all kinds of devices given.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from ridgeline.cost.training.estimate import estimate_training
from ridgeline.cost.training.layouts import stack_layouts
from ridgeline.errors import InputError
from ridgeline.hardware import catalogue
from ridgeline.plan.training.bill import SECONDS_PER_DAY
from ridgeline.plan.training.plan import plan_task
from ridgeline.plan.training.task import SearchOutcome, TrainingTask, find
from ridgeline.records.layout import Layout
from ridgeline.records.plan import ClusterSize, Objective, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """One cluster that meets the date."""

    task: TrainingTask
    days: float
    usd: float | None


def plan_by_date(
    tasks: Sequence[TrainingTask], *, tokens: float, days: float, objective: Objective = "time"
) -> tuple[TrainingTask, Plan]:
    """The task on the cluster that is chosen, and its plan with all clusters that meet the date."""
    task, met = cluster_for(tasks, tokens=tokens, days=days, objective=objective)
    plan = plan_task(task, tokens=tokens)
    sizes_met = [
        ClusterSize(
            cluster=f"{one.task.cluster.num_devices}x{one.task.cluster.device.name}",
            days=one.days,
            usd=one.usd,
        )
        for one in met
    ]
    return task, msgspec.structs.replace(plan, objective=objective, clusters=sizes_met)


def cluster_for(
    tasks: Sequence[TrainingTask], *, tokens: float, days: float, objective: Objective = "time"
) -> tuple[TrainingTask, list[Met]]:
    """The task on the smallest (objective `time`) or cheapest (`cost`) cluster, and all that met.

    Each task's cluster is the largest one of its kind that may be used.
    """
    if not days > 0:
        raise InputError(f"--days is {days:g}; it must be above 0")
    if objective == "memory":
        raise InputError("--days looks for the smallest or cheapest cluster: time or cost")
    met: list[Met] = []
    closest: tuple[float, str] | None = None
    for task in tasks:
        for size in sizes(task, tokens, days):
            outcome = _try(task.sized(size))
            if outcome is None or not outcome.fits:
                continue
            took = _days(task, outcome.step_seconds, tokens)
            if closest is None or took < closest[0]:
                closest = (took, f"{size}x{task.cluster.device.name}")
            if took <= days:
                met.append(Met(task=task.sized(size), days=took, usd=_usd(task, size, took)))
                if objective == "time":
                    break
    if not met:
        raise InputError(_too_late(tasks, tokens, days, closest))
    return _chosen(met, objective).task, met


def sizes(task: TrainingTask, tokens: float, days: float) -> Iterator[int]:
    """Numbers of devices worth trying, ascending, up to the task's own."""
    most = task.cluster.num_devices
    least = _least_devices(task, tokens, days)
    step = task.cluster.domain_size
    tried = {most} if most >= least else set()
    power = 1
    while power <= most:
        for quarters in (4, 5, 6, 7):
            size = power * quarters // 4
            whole = size if size < step else math.ceil(size / step) * step
            if least <= whole <= most:
                tried.add(whole)
        power *= 2
    yield from sorted(tried)


def _least_devices(task: TrainingTask, tokens: float, days: float) -> int:
    """Devices that the FLOPs alone need at full peak: a bound that no layout passes."""
    one = Layout(global_batch=1, precision=task.precisions[0])
    alone = task.sized(1)
    found = estimate_training(
        task.model, alone.cluster, task.workload, stack_layouts([one]), task.coefficients
    )
    per_token = float(found.model_flops[0]) / task.workload.seq
    peak = max(task.cluster.device.peaks.get(name, 0.0) for name in _arithmetic(task))
    return max(1, math.floor(tokens * per_token / (peak * days * SECONDS_PER_DAY)))


def _arithmetic(task: TrainingTask) -> list[str]:
    kinds = {"mxfp8": "fp8", "nvfp4": "fp4", "fp32": "tf32"}
    return [kinds.get(name, name) for name in task.precisions]


def _try(task: TrainingTask) -> SearchOutcome | None:
    try:
        return find(replace(task, thorough=False))
    except InputError:  # this many devices have no valid layout: try the next size
        return None


def _days(task: TrainingTask, step_seconds: float, tokens: float) -> float:
    steps = math.ceil(tokens / (task.global_batch * task.workload.seq))
    return steps * step_seconds / SECONDS_PER_DAY


def _usd(task: TrainingTask, num_devices: int, days: float) -> float | None:
    price = catalogue.typical_usd_per_device_hour(task.cluster.device.name)
    return None if price is None else price * num_devices * days * 24.0


def _chosen(met: Sequence[Met], objective: Objective) -> Met:
    if objective == "time":
        return min(met, key=lambda one: one.task.cluster.num_devices)
    if len({one.task.cluster.device.name for one in met}) > 1:
        unpriced = [one.task.cluster.device.name for one in met if one.usd is None]
        if unpriced:
            raise InputError(f"no price of {unpriced[0]} is on record: leave it out")
    return min(met, key=lambda one: one.usd or one.days * one.task.cluster.num_devices)


def _too_late(
    tasks: Sequence[TrainingTask], tokens: float, days: float, closest: tuple[float, str] | None
) -> str:
    largest = " or ".join(f"{t.cluster.num_devices}x{t.cluster.device.name}" for t in tasks)
    line = (
        f"{tasks[0].model.name} on {tokens / 1e9:g}B tokens in {days:g} days is too much for"
        f" {largest}"
    )
    if closest is None:
        least = min(_least_devices(task, tokens, days) for task in tasks)
        if least > max(task.cluster.num_devices for task in tasks):
            return line + f": at full peak the arithmetic alone takes {least} devices; allow more"
        return line + ": it fits in the memory of none of the sizes tried; allow more devices"
    return line + f": the fastest takes {closest[0]:.1f} days ({closest[1]}); allow more devices"
