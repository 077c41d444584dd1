"""The cheapest setting of a node autoscaler that keeps 95 % of waits within an objective."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.errors import InputError
from ridgeline.queue.autoscaling import NodeScaling, play_scaled
from ridgeline.queue.jobs import Jobs
from ridgeline.queue.readers.traced_jobs import left_out_notes
from ridgeline.records.node_autoscaling import NodeAutoscaling, ScaledSetting

IDLE_SECONDS = (0.0, 300.0, 900.0, 3600.0)
"""Idle times that are tried where none is given."""
LEVELS = 5
"""Least and largest numbers of nodes that are tried, each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingAsked:
    """What is given of a setting; None: to be searched."""

    gpus_per_node: int
    delay_seconds: float
    most_nodes: int
    """No setting has more."""
    min_nodes: int | None = None
    idle_seconds: float | None = None
    node_hour_price: float | None = None
    objective_seconds: float | None = None


def search_scaling(
    jobs: Jobs,
    asked: ScalingAsked,
    *,
    trace: str = "",
    skip_unfit: bool = False,
    notes: Sequence[str] = (),
    on_progress: Callable[[str], None] = lambda _line: None,
) -> NodeAutoscaling:
    """Play the trace under every setting.

    Args:
        jobs: The trace.
        asked: What is fixed, and what is wanted.
        trace: Its name in the answer.
        skip_unfit: Leave out jobs that all nodes together do not hold, instead of refusing.
        notes: Remarks of whoever read the trace.
        on_progress: Told what is being played.

    Raises:
        InputError: A number cannot be, or a job fits no setting.
    """
    _check(asked)
    needed = [_nodes_of(int(gpus), asked.gpus_per_node) for gpus in jobs.num_gpus]
    kept = [place for place, count in enumerate(needed) if count <= asked.most_nodes]
    if len(kept) < len(jobs) and not skip_unfit:
        first = next(place for place, count in enumerate(needed) if count > asked.most_nodes)
        raise InputError(
            f"job {jobs.names[first]} asks for {jobs.num_gpus[first]:,} GPUs, which"
            f" {asked.most_nodes:,} nodes of {asked.gpus_per_node} do not have in one piece; raise"
            " max, or --skip-unfit to leave such jobs out"
        )
    if not kept:
        raise InputError(f"none of the {len(jobs):,} jobs fits {asked.most_nodes:,} nodes")
    largest = max(needed[place] for place in kept)
    chosen = jobs if len(kept) == len(jobs) else jobs.chosen(kept)
    found = []
    settings = list(_settings(asked, largest))
    for number, one in enumerate(settings, 1):
        on_progress(f"setting {number} of {len(settings)}")
        found.append(_judged(chosen, one, asked))
    always = replace(settings[0], min_nodes=asked.most_nodes, max_nodes=asked.most_nodes)
    rank = sorted(found, key=lambda one: (not one.meets, one.node_hours, one.p95_wait_seconds))
    left_out = len(jobs) - len(kept)
    return NodeAutoscaling(
        trace=trace,
        jobs=len(chosen),
        gpus_per_node=asked.gpus_per_node,
        delay_seconds=asked.delay_seconds,
        objective_seconds=asked.objective_seconds,
        best=rank[0] if rank[0].meets else None,
        fixed=_judged(chosen, always, asked),
        settings=rank,
        notes=[*notes, *left_out_notes({"too large": left_out}, "job")],
    )


def _check(asked: ScalingAsked) -> None:
    for name, value in (("gpus", asked.gpus_per_node), ("max", asked.most_nodes)):
        if value < 1:
            raise InputError(f"--autoscale: {name} is {value}; give 1 or more")
    if asked.min_nodes is not None and not 0 <= asked.min_nodes <= asked.most_nodes:
        raise InputError(f"--autoscale: min is {asked.min_nodes}; give 0 to max")


def _nodes_of(gpus: int, size: int) -> int:
    return math.ceil(gpus / size)


def _settings(asked: ScalingAsked, largest: int) -> list[NodeScaling]:
    """All that is not given, tried at a few levels."""
    top = asked.most_nodes
    most = sorted({max(largest, round(top * n / LEVELS)) for n in range(1, LEVELS + 1)})
    least = (
        [asked.min_nodes] if asked.min_nodes is not None
        else sorted({round(top * n / LEVELS) for n in range(LEVELS)})
    )  # fmt: skip
    idle = IDLE_SECONDS if asked.idle_seconds is None else (asked.idle_seconds,)
    if asked.objective_seconds is None:
        most = [top]
    return [
        NodeScaling(
            gpus_per_node=asked.gpus_per_node, min_nodes=low, max_nodes=high,
            delay_seconds=asked.delay_seconds, idle_seconds=seconds,
        )
        for high in most for low in least if low <= high for seconds in idle
    ]  # fmt: skip


def _judged(jobs: Jobs, setting: NodeScaling, asked: ScalingAsked) -> ScaledSetting:
    played = play_scaled(jobs, setting)
    waits = np.sort(played.start_seconds - jobs.submit_seconds)
    hours = played.node_seconds / 3600.0
    paid = hours * setting.gpus_per_node
    late = _at(waits, 0.95)
    return ScaledSetting(
        min_nodes=setting.min_nodes,
        max_nodes=setting.max_nodes,
        idle_seconds=setting.idle_seconds,
        mean_wait_seconds=float(waits.mean()),
        p50_wait_seconds=_at(waits, 0.5),
        p95_wait_seconds=late,
        node_hours=hours,
        cost_usd=None if asked.node_hour_price is None else hours * asked.node_hour_price,
        most_nodes=played.most_nodes,
        utilisation=jobs.gpu_seconds / 3600.0 / paid if paid else 0.0,
        meets=asked.objective_seconds is None or late <= asked.objective_seconds,
    )


def _at(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], share: float) -> float:
    return float(values[int(share * len(values))])
