"""What would change the plan: the best layout where one thing is different.

Faster links, another precision or schedule leave the space as it is: the best layout of every
family of the search is judged again. More memory or another number of devices open new layouts:
there the search runs again, over the usual shard groups (one fast domain, all ranks) and
micro-batches (powers of two), and the unchanged layout is kept where it runs and is better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from ridgeline.cost.training.layouts import PRECISIONS, SCHEDULES, Layouts
from ridgeline.errors import InputError
from ridgeline.hardware.cluster import Cluster
from ridgeline.plan.training.search import Candidates, judge_of, score
from ridgeline.plan.training.task import TrainingTask, find
from ridgeline.records.layout import Layout
from ridgeline.records.plan import Objective, WhatIf

LARGE_DOMAIN = 72
"""Devices that one NVLink domain of today's racks joins (GB200 NVL72)."""
_MOST = 20_000
"""Families that are judged again, the best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnchangedPlan:
    """The unchanged search that changes are held against."""

    task: TrainingTask
    families: Candidates
    objective: Objective

    @property
    def best(self) -> Layout:
        """The best layout of the search."""
        return self.families.layouts.at(0)

    @property
    def step_seconds(self) -> float:
        """The step time of its best layout."""
        return float(self.families.step_seconds[0])


def what_ifs(unchanged: UnchangedPlan) -> list[WhatIf]:
    """The best under every change that makes sense here, the most helpful first."""
    found = [_judged_again(unchanged, *change) for change in _same_space(unchanged)]
    found += [_searched_again(unchanged, name, task) for name, task in _new_spaces(unchanged.task)]
    return sorted(found, key=lambda one: -(one.times_faster or 0.0))


def _same_space(
    unchanged: UnchangedPlan,
) -> list[tuple[str, TrainingTask, Callable[[Layouts], Layouts]]]:
    """Name, task and layouts of each change that opens no new layouts."""
    task, cluster = unchanged.task, unchanged.task.cluster
    changes: list[tuple[str, TrainingTask, Callable[[Layouts], Layouts]]] = []
    if cluster.num_devices > 1:
        inside = replace(cluster, domain_bytes_per_second=2 * cluster.domain_bytes_per_second)
        changes.append(("twice the bandwidth inside a node", task.on(inside), _as_they_are))
    if cluster.num_devices > cluster.domain_size:
        outside = replace(cluster, network_bytes_per_second=2 * cluster.network_bytes_per_second)
        changes.append(("twice the network bandwidth", task.on(outside), _as_they_are))
        if cluster.domain_size < LARGE_DOMAIN:
            rack = replace(cluster, domain_size=LARGE_DOMAIN)
            name = f"fast domains of {LARGE_DOMAIN} devices"
            changes.append((name, task.on(rack), _as_they_are))
    if "fp8" in cluster.device.peaks and "fp8" not in task.precisions:
        changes.append(("matmuls in fp8", task, _in_fp8))
    if (unchanged.families.layouts.pp > 1).any():
        changes.append(("a zero-bubble pipeline schedule", task, _without_bubble))
    return changes


def _as_they_are(layouts: Layouts) -> Layouts:
    return layouts


def _in_fp8(layouts: Layouts) -> Layouts:
    return replace(layouts, precision=np.full(len(layouts), PRECISIONS.index("fp8")))


def _without_bubble(layouts: Layouts) -> Layouts:
    """Plain pipelines with their schedule changed; what has none or is interleaved stays."""
    plain = (layouts.pp > 1) & (layouts.vpp == 1)
    changed = np.where(plain, SCHEDULES.index("zero-bubble"), layouts.schedule)
    return replace(layouts, schedule=changed)


def _judged_again(
    unchanged: UnchangedPlan, name: str, task: TrainingTask, change: Callable[[Layouts], Layouts]
) -> WhatIf:
    layouts = change(
        unchanged.families.layouts.take(np.arange(min(len(unchanged.families), _MOST)))
    )
    judge = judge_of(task.model, task.cluster, task.workload, task.coefficients, tight=True)
    judged = Candidates(
        layouts=layouts,
        step_seconds=judge.step_seconds(layouts),
        peak_bytes=judge.peak_bytes(layouts),
    )
    judged = judged.take(judged.peak_bytes <= judge.limit_bytes)
    if not len(judged):
        return _what_if(unchanged, name, task, None, None)
    scores = score(judged, judge.limit_bytes, unchanged.objective)
    first = int(np.lexsort((judged.peak_bytes, scores))[0])
    seconds = float(judged.step_seconds[first])
    return _what_if(unchanged, name, task, judged.layouts.at(first), seconds)


def _new_spaces(task: TrainingTask) -> list[tuple[str, TrainingTask]]:
    count = task.cluster.num_devices
    changes = [
        ("twice the memory on each device", task.on(_doubled_memory(task.cluster))),
        ("twice the devices", task.sized(2 * count)),
    ]
    if count > 1:
        changes.append(("half the devices", task.sized(count // 2)))
    return changes


def _doubled_memory(cluster: Cluster) -> Cluster:
    memory = cluster.device.memory
    doubled = msgspec.structs.replace(
        memory, capacity_bytes=2 * memory.capacity_bytes, reported_bytes=2 * memory.usable_bytes
    )
    return replace(cluster, device=msgspec.structs.replace(cluster.device, memory=doubled))


def _searched_again(unchanged: UnchangedPlan, name: str, task: TrainingTask) -> WhatIf:
    layout: Layout | None = None
    seconds: float | None = None
    try:
        outcome = find(replace(task, thorough=False), unchanged.objective)
    except InputError:  # the changed cluster has no valid layout: a result, not a failure
        outcome = None
    if outcome is not None and outcome.fits:
        layout, seconds = outcome.best, outcome.step_seconds
    same_size = task.cluster.num_devices == unchanged.task.cluster.num_devices
    if same_size and unchanged.objective != "memory":
        kept = task.estimate(unchanged.best).step_seconds
        if seconds is None or kept < seconds:
            layout, seconds = unchanged.best, kept
    return _what_if(unchanged, name, task, layout, seconds)


def _what_if(
    unchanged: UnchangedPlan,
    name: str,
    task: TrainingTask,
    layout: Layout | None,
    seconds: float | None,
) -> WhatIf:
    return WhatIf(
        change=name,
        num_devices=task.cluster.num_devices,
        step_seconds=seconds,
        times_faster=None if seconds is None else unchanged.step_seconds / seconds,
        layout=layout,
    )
