"""Slurm's backfill looks at the first jobs of the queue alone, and at none that would start."""

from __future__ import annotations

import re

from ridgeline.quantity import several
from ridgeline.queue.doctor.lasting import unit_of
from ridgeline.queue.doctor.room import BeforeAndCured, ClusterAhead, starting_now
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import SLURM, LiveCluster, LivePod
from ridgeline.records.queue_finding import QueueFinding

_MOST = re.compile(r"\bbf_max_job_test=(\d+)")
_PARAMETERS, _DEPTHS = "schedulerparameters", ("sdiag LAST_DEPTH", "sdiag DEPTH")


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs of jobs that would start, where all of them stand behind those that are looked at."""
    depth, source = _depth(state)
    if state.scheduler != SLURM or not depth:
        return None
    order = _in_order(state.waiting)
    if len(order) <= depth:
        return None
    starting = set(starting_now(state))
    helped = [pod for pod in state.waiting if pod.name in starting and pod.num_gpus]
    places = [order[unit_of(pod)] for pod in helped]
    if not helped or min(places) < depth:
        return None
    lost = sum(pod.num_gpus for pod in helped)
    return found(
        "backfill-cut-short",
        lost_gpus=lost,
        counted="free, and asked for by jobs that backfill does not come to",
        confidence=0.85,
        summary=f"backfill looks at {depth} jobs a cycle ({source}) of {len(order)} that wait:"
        f" {several(len(helped), 'job')} of {several(lost, 'GPU')} that would start now come after"
        f" them, the first in place {min(places) + 1}",
        evidence={"depth": depth, "jobs_waiting": len(order), "jobs_that_would_start": len(helped)},
        where=[pod.name for pod in helped],
        filled={"depth": str(len(order) + 100)},
    )


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """They start where there is room; as it is nobody comes to them."""
    held = state.with_pods(finding.where, gated=True)
    return ClusterAhead(state=held), ClusterAhead(state=state)


def _depth(state: LiveCluster) -> tuple[int, str]:
    """How many jobs backfill looks at in a cycle, and who says so; 0: nobody does."""
    for name in _DEPTHS:
        if state.settings.get(name, "").isdigit():
            return int(state.settings[name]), "by sdiag"
    most = _MOST.search(state.settings.get(_PARAMETERS, ""))
    return (int(most[1]), f"bf_max_job_test={most[1]}") if most else (0, "")


def _in_order(waiting: list[LivePod]) -> dict[str, int]:
    """The place of each job in the queue, the one of the highest priority first."""
    by_rank = sorted(waiting, key=lambda pod: (-pod.priority, pod.created_seconds or 0.0))
    return {name: place for place, name in enumerate(dict.fromkeys(map(unit_of, by_rank)))}
