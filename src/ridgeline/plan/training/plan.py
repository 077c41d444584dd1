"""The best layout of a training run, and everything one asks next (`plan_training`).

The search is exhaustive over `enumeration.py`'s space with the cost model of
`cost/training/estimate.py`; this file turns what it found into a plan: runners-up with why they
lose, the Pareto front, what every knob is worth, what would change the plan (`changes.py`), the
bill (`bill.py`), the launch arguments (`launch_arguments/`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from ridgeline.cost.arrays import Ints
from ridgeline.cost.training.layouts import OFFLOADS, PRECISIONS, RECOMPUTES, SCHEDULES
from ridgeline.cost.training.setting import peak_of
from ridgeline.errors import InputError
from ridgeline.hardware import catalogue
from ridgeline.hardware.cluster import Cluster, parse_cluster
from ridgeline.models import load_model
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.explain import headline, term_sentences
from ridgeline.plan.training.bill import bill_of
from ridgeline.plan.training.changes import UnchangedPlan, what_ifs
from ridgeline.plan.training.coefficients import coefficients_for
from ridgeline.plan.training.enumeration import skeletons
from ridgeline.plan.training.estimate import estimate_question
from ridgeline.plan.training.launch_arguments import launches
from ridgeline.plan.training.question import TrainingQuestion
from ridgeline.plan.training.search import FAMILY, Candidates
from ridgeline.plan.training.stacks import require_precision
from ridgeline.plan.training.task import SearchOutcome, TrainingTask, find, nothing_fits
from ridgeline.plan.training.trained import WHOLE, Trained, workload_of
from ridgeline.records.estimate import Estimate
from ridgeline.records.layout import Layout, Offload, Precision
from ridgeline.records.plan import (
    Bill,
    Choice,
    KnobValue,
    Launch,
    Objective,
    ParetoPoint,
    Plan,
    RunnerUp,
)

RUNNERS_UP = 4
_FRONT_STEP = 0.02
"""Shares of the device's memory that two points of the Pareto front are apart at least."""
_WORDS = {
    "schedule": SCHEDULES,
    "recompute": RECOMPUTES,
    "precision": PRECISIONS,
    "offload": OFFLOADS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """The outcome of one cluster size."""

    task: TrainingTask
    outcome: SearchOutcome

    @property
    def device_seconds(self) -> float:
        """What a step costs on this size."""
        return self.outcome.step_seconds * self.task.cluster.num_devices


def plan_training(
    model: str | ModelSpec,
    cluster: str | Cluster,
    *,
    global_batch: int,
    seq: int | None = None,
    tokens: float | None = None,
    objective: Objective = "time",
    precisions: Sequence[Precision] | None = None,
    software: str = "torch",
    offload: Offload | None = None,
    trained: Trained = WHOLE,
) -> Plan:
    """The best layout for training `model` on `cluster`, out of every valid one.

    Args:
        model: A preset's name, the path of a `config.json`, or a `ModelSpec`.
        cluster: `COUNTxDEVICE`, or a `Cluster`.
        global_batch: Sequences in one optimizer step.
        seq: Tokens in one sequence; a model of images has its own.
        tokens: Of the whole run, for days, money and energy.
        objective: `time` of a step; `memory` of the fullest device; `cost`: device-hours, over
            the cluster and its halves, quarters, …
        precisions: The dtype of the matmuls; by default the device's 16-bit dtype.
        software: The class of software whose costs are counted (`plan/training/stacks.toml`).
        offload: What waits off the devices in every layout; None: as much as it takes to fit.
        trained: The weights or adapters that are trained, and by which optimizer.

    >>> plan = plan_training("gpt2", "8xA100", global_batch=64, seq=1024)
    >>> plan.best.layout.num_devices, plan.best.estimate.memory.verdict
    (8, 'fits')
    """
    task = task_of(
        model,
        cluster,
        global_batch=global_batch,
        seq=seq,
        precisions=precisions,
        software=software,
        offload=offload,
        trained=trained,
    )
    return plan_task(task, tokens=tokens, objective=objective)


def plan_task(
    task: TrainingTask, *, tokens: float | None = None, objective: Objective = "time"
) -> Plan:
    """The same for a task that is already made."""
    if tokens is not None and not tokens > 0:
        raise InputError(f"tokens is {tokens:g}; it must be above 0")
    start = time.perf_counter()
    sizes = [_first(task, objective)]
    if objective == "cost":
        sizes += _smaller(task)
    seconds = time.perf_counter() - start
    chosen = min(sizes, key=lambda size: size.device_seconds) if objective == "cost" else sizes[0]
    return _plan(chosen, sizes, objective, tokens, seconds)


def task_of(
    model: str | ModelSpec,
    cluster: str | Cluster,
    *,
    global_batch: int,
    seq: int | None,
    precisions: Sequence[Precision] | None = None,
    software: str = "torch",
    offload: Offload | None = None,
    trained: Trained = WHOLE,
) -> TrainingTask:
    """The arguments of a plan, checked."""
    spec = model if isinstance(model, ModelSpec) else load_model(model)
    where = cluster if isinstance(cluster, Cluster) else parse_cluster(cluster)
    if global_batch < 1:
        raise InputError(f"global batch is {global_batch}; it must be 1 or more")
    chosen = tuple(precisions or (where.device.training_dtype,))
    for precision in chosen:
        _check_precision(where, precision)
        require_precision(software, precision)
    return TrainingTask(
        model=spec,
        cluster=where,
        workload=workload_of(spec, seq=seq, software=software, trained=trained),
        global_batch=global_batch,
        precisions=chosen,
        coefficients=coefficients_for(where.device),
        offload=offload,
        trained=trained,
    )


def _check_precision(cluster: Cluster, precision: Precision) -> None:
    if precision not in PRECISIONS:
        raise InputError(f"unknown precision {precision!r}; use {', '.join(PRECISIONS)}")
    if math.isnan(peak_of(cluster.device, precision)):
        raise InputError(
            f"{cluster.device.name} has no {precision} units; it has"
            f" {', '.join(cluster.device.peaks)}"
        )


def _first(task: TrainingTask, objective: Objective) -> Sized:
    outcome = find(task, objective)
    if not outcome.fits:
        raise InputError(nothing_fits(task, outcome))
    return Sized(task=task, outcome=outcome)


def _smaller(task: TrainingTask) -> list[Sized]:
    """Halves, quarters, … of the cluster, as long as the model fits."""
    sizes = []
    count = task.cluster.num_devices
    while count % 2 == 0:
        count //= 2
        part = task.sized(count)
        try:
            outcome = find(part)
        except InputError:  # this size has no valid layout: the next half may have one
            continue
        if not outcome.fits:
            break
        sizes.append(Sized(task=part, outcome=outcome))
    return sizes


def _plan(
    chosen: Sized,
    sizes: list[Sized],
    objective: Objective,
    tokens: float | None,
    seconds: float,
) -> Plan:
    task, found = chosen.task, chosen.outcome.found
    best = _with_assumptions(task, task.estimate(found.families.layouts.at(0)))
    where = f"{task.cluster.num_devices}x{task.cluster.device.name}"
    bill = None
    if tokens is not None:
        bill = bill_of(
            task.cluster, best.step_seconds, tokens, task.global_batch * task.workload.seq
        )
    return Plan(
        model=task.model.name,
        cluster=where,
        global_batch=task.global_batch,
        seq=task.workload.seq,
        objective=objective,
        best=Choice(layout=best.layout, estimate=best),
        runners_up=_runners_up(task, found.families, best),
        pareto=_pareto(chosen) if objective != "cost" else _money_front(sizes),
        knobs=_knobs(task, found.families, best),
        what_if=what_ifs(UnchangedPlan(task=task, families=found.families, objective=objective)),
        bill=bill,
        launch=_launches(task, found.families, best, bill),
        searched=sum(size.outcome.found.searched for size in sizes),
        feasible=sum(size.outcome.found.feasible for size in sizes),
        seconds=seconds,
        assumed=[*best.assumed, *chosen.outcome.notes],
    )


def _launches(
    task: TrainingTask, families: Candidates, best: Estimate, bill: Bill | None
) -> list[Launch]:
    """Arguments for frameworks, which are written for AdamW: of other optimizers there are none."""
    if not task.trained.by_usual_adamw:
        return []
    return launches(
        task.model,
        families,
        best,
        task.cluster,
        task.workload.seq,
        None if bill is None else bill.tokens,
        adapters=task.trained.adapter is not None,
    )


def _with_assumptions(task: TrainingTask, best: Estimate) -> Estimate:
    """The estimate with everything that `predict training` says it assumes."""
    question = TrainingQuestion(
        model=task.model,
        cluster=task.cluster,
        workload=task.workload,
        layout=best.layout,
        trained=task.trained,
    )
    return msgspec.structs.replace(best, assumed=estimate_question(question).assumed)


def _kind(layout: Layout) -> tuple[object, ...]:
    """Layouts of different kinds differ in more than a detail."""
    weights_sharded, offloaded = layout.zero == 3, layout.offload != "none"
    return (layout.tp, layout.pp, layout.cp > 1, layout.ep, weights_sharded, offloaded)


def _runners_up(task: TrainingTask, families: Candidates, best: Estimate) -> list[RunnerUp]:
    kinds = {_kind(best.layout)}
    runners: list[RunnerUp] = []
    for index in range(1, len(families)):
        layout = families.layouts.at(index)
        if _kind(layout) in kinds:
            continue
        kinds.add(_kind(layout))
        estimate = task.estimate(layout)
        runners.append(
            RunnerUp(
                layout=layout,
                estimate=estimate,
                times_slower=estimate.step_seconds / best.step_seconds,
                why=_why(best, estimate),
            )
        )
        if len(runners) == RUNNERS_UP:
            break
    return runners


def _why(best: Estimate, other: Estimate) -> list[str]:
    names = ("the best", "this one")
    if best.step_seconds <= other.step_seconds:
        return [headline(best, other, names), *term_sentences(best, other, names, most=3)]
    swapped = (names[1], names[0])
    return [headline(other, best, swapped), *term_sentences(other, best, swapped, most=3)]


def _pareto(sized: Sized) -> list[ParetoPoint]:
    """Step time against peak memory, thinned to points that differ visibly."""
    front = sized.outcome.found.front
    capacity = float(sized.task.cluster.device.memory.usable_bytes)
    kept: list[int] = []
    for index in range(len(front)):
        if not kept or front.peak_bytes[index] < (
            front.peak_bytes[kept[-1]] - _FRONT_STEP * capacity
        ):
            kept.append(index)
    return [_point(sized.task, front.layouts.at(index)) for index in kept]


def _money_front(sizes: list[Sized]) -> list[ParetoPoint]:
    """Step time against device time, over the sizes of the cluster."""
    front: list[Sized] = []
    for size in sorted(sizes, key=lambda one: (one.outcome.step_seconds, one.device_seconds)):
        if not front or size.device_seconds < front[-1].device_seconds:
            front.append(size)
    return [_point(size.task, size.outcome.best) for size in front]


def _point(task: TrainingTask, layout: Layout) -> ParetoPoint:
    estimate = task.estimate(layout)
    price = catalogue.typical_usd_per_device_hour(task.cluster.device.name)
    device_seconds = estimate.step_seconds * task.cluster.num_devices
    return ParetoPoint(
        layout=layout,
        estimate=estimate,
        num_devices=task.cluster.num_devices,
        device_seconds_per_step=device_seconds,
        usd_per_step=None if price is None else device_seconds / 3600.0 * price,
    )


def _knobs(task: TrainingTask, families: Candidates, best: Estimate) -> list[KnobValue]:
    """For every knob and value, the best step with the knob held there."""
    values: list[KnobValue] = []
    for knob, possible in _possible(task, families).items():
        column: Ints = getattr(families.layouts, knob)
        for value in possible:
            held = families.step_seconds[column == value]
            words = _WORDS.get(knob)
            values.append(
                KnobValue(
                    knob=knob,
                    value=str(value) if words is None else words[value],
                    times_slower=float(held.min()) / best.step_seconds if len(held) else None,
                )
            )
    return values


def _possible(task: TrainingTask, families: Candidates) -> dict[str, list[int]]:
    """Knob → the values that it can have here, whether they fit or not; lone values left out."""
    found = {name: np.unique(getattr(families.layouts, name)).tolist() for name in FAMILY}
    shapes = skeletons(task.space(min(task.cluster.domain_size, task.cluster.num_devices)))
    for name in ("tp", "pp", "cp"):
        found[name] = sorted({*found[name], *(getattr(shape, name) for shape in shapes)})
    found["zero"] = [0, 1, 2, 3] if any(shape.dp * shape.cp > 1 for shape in shapes) else [0]
    found["recompute"] = list(range(len(RECOMPUTES)))
    return {name: values for name, values in found.items() if len(values) > 1}
