"""GPUs are cut into slices that nobody asks for, while other slices are waited for."""

from __future__ import annotations

from collections import Counter

from ridgeline.quantity import several
from ridgeline.queue.doctor.cluster_ahead import BeforeAndCured
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster, slice_share
from ridgeline.records.queue_finding import QueueFinding


def find(state: LiveCluster) -> QueueFinding | None:
    """The part of GPUs in slices that are free, up to what waits for slices of another size."""
    used, free, wanted = state.used_slices(), Counter[str](), Counter[str]()
    for node in state.nodes:
        if not node.closed:
            for profile, number in node.slices.items():
                free[profile] += number - used.get(node.name, {}).get(profile, 0)
    waiting = [pod for pod in state.waiting if pod.slices]
    for pod in waiting:
        wanted.update(pod.slices)
    short = Counter({name: need - free[name] for name, need in wanted.items()
                     if need > free[name]})  # fmt: skip
    spare = {name: number - wanted[name] for name, number in free.items() if number > wanted[name]}
    lost = min(_gpus(short), _gpus(spare))
    if lost <= 0:
        return None
    needed = max(short, key=lambda name: short[name] * slice_share(name))
    idle = max(spare, key=lambda name: spare[name] * slice_share(name))
    per_gpu = max(1, int(1.0 / slice_share(needed))) if slice_share(needed) else 1
    return found(
        "mig-mismatch",
        lost_gpus=lost,
        counted="of compute in free slices, up to what pods wait for in slices of another size",
        confidence=0.9,
        summary=f"{several(short[needed], 'slice')} of {needed} are waited for, while"
        f" {spare[idle]} of {idle} are free: GPUs are cut for a demand that is not there",
        evidence={
            **{f"free {name}": number for name, number in sorted(spare.items())},
            **{f"short of {name}": number for name, number in sorted(short.items())},
        },
        where=[pod.name for pod in waiting],
        filled={"profile": needed, "count": str(per_gpu)},
    )


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """Why the cure is not played: MIG slices are left out."""
    del state, finding
    return "which GPUs can be cut anew while others of their slices run is not in the state"


def _gpus(slices: dict[str, int]) -> float:
    return sum(number * slice_share(name) for name, number in slices.items())
