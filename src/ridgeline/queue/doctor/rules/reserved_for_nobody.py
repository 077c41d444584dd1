"""Claims, groups or workloads keep GPUs of which no pod of theirs makes use any more."""

from __future__ import annotations

from ridgeline.quantity import several
from ridgeline.queue.doctor.room import starting_if_let, starting_now
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import HeldForNobody, LiveCluster
from ridgeline.records.queue_finding import QueueFinding

PATIENCE_SECONDS = 900.0
"""Pods of what was made since may be on their way."""

NOT_PLAYED = "what keeps the GPUs is no pod, and is not simulated"


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs that are kept for nobody, up to those of pods that would start with them."""
    kept = [one for one in state.for_nobody if _lasts(state, one)]
    if not kept:
        return None
    now = set(starting_now(state))
    helped = [pod for pod in state.waiting if pod.name in now]
    helped += starting_if_let(state, [pod for pod in state.held_back if pod.num_gpus])
    total = sum(one.gpus for one in kept)
    lost = min(total, sum(pod.num_gpus for pod in helped))
    if not lost:
        return None
    kept.sort(key=lambda one: (-one.gpus, one.name))
    first = kept[0]
    more = f" and {len(kept) - 1} more" if len(kept) > 1 else ""
    return found(
        "reserved-for-nobody",
        way=first.way,
        lost_gpus=lost,
        counted="kept by what has no pods, up to what waiting pods ask for that would start",
        confidence=0.95,
        summary=f"{first.name}{more} keep {several(total, 'GPU')} and have no pod that uses them,"
        f" while {several(len(helped), 'pod')} wait that would start",
        evidence={"kept_gpus": total, "keepers": len(kept), "pods_that_would_start": len(helped)},
        where=[one.name for one in kept],
        filled={"kind": first.name.partition(" ")[0].lower(),
                "name": first.name.rpartition(" ")[2].rpartition("/")[2],
                "namespace": first.name.partition(" ")[2].partition("/")[0]},
    )  # fmt: skip


def _lasts(state: LiveCluster, one: HeldForNobody) -> bool:
    if state.now_seconds is None or one.since_seconds is None:
        return True
    return state.now_seconds - one.since_seconds >= PATIENCE_SECONDS
