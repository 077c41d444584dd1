"""GPUs are cut into slices that nobody asks for, while other slices, or whole GPUs, are."""

from __future__ import annotations

from collections import Counter

from ridgeline.quantity import several
from ridgeline.queue.doctor.room import free_gpus
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster, slice_share
from ridgeline.records.queue_finding import QueueFinding

WHOLE = "whole GPUs"
_CAPABLE = "nvidia.com/mig.capable"

NOT_PLAYED = "which GPUs can be cut anew while others of their slices run is not in the state"


def find(state: LiveCluster) -> QueueFinding | None:
    """The part of GPUs in slices that are free, up to what waits for slices of another size."""
    if (renamed := _offered_as_gpus(state)) is not None:
        return renamed
    used, free, wanted = state.used_slices(), Counter[str](), Counter[str]()
    for node in state.nodes:
        if not node.closed:
            for profile, number in node.slices.items():
                free[profile] += number - used.get(node.name, {}).get(profile, 0)
    waiting = [pod for pod in state.waiting if pod.slices or pod.num_gpus]
    for pod in waiting:
        wanted.update(pod.slices)
    splits = {node.name for node in state.nodes if node.labels.get(_CAPABLE) == "true"}
    whole = free_gpus(state)
    if any(node.slices for node in state.nodes):
        wanted[WHOLE] = sum(pod.num_gpus for pod in waiting)
        free[WHOLE] = sum(whole.values())
    short = Counter({name: need - free[name] for name, need in wanted.items()
                     if need > free[name]})  # fmt: skip
    spare = {name: number - wanted[name] for name, number in free.items() if number > wanted[name]}
    if WHOLE in spare:  # only of what can be split
        spare[WHOLE] = min(spare[WHOLE], sum(whole.get(name, 0) for name in splits))
    lost = min(_gpus(short), _gpus(spare))
    if lost <= 0:
        return None
    needed = max(short, key=lambda name: short[name] * _share(name))
    idle = max(spare, key=lambda name: spare[name] * _share(name))
    per_gpu = max(1, int(1.0 / _share(needed))) if _share(needed) else 1
    if needed == WHOLE and lost < 1.0:
        return None
    return found(
        "mig-mismatch",
        lost_gpus=lost,
        counted="of compute in free slices, up to what pods wait for in slices of another size",
        confidence=0.9,
        way="whole" if needed == WHOLE else "",
        summary=f"{_named(short[needed], needed)} are waited for, while"
        f" {_named(spare[idle], idle)} are free: GPUs are cut for a demand that is not there",
        evidence={
            **{f"free {name}": number for name, number in sorted(spare.items())},
            **{f"short of {name}": number for name, number in sorted(short.items())},
        },
        where=[pod.name for pod in waiting],
        filled={"profile": needed, "count": str(per_gpu)},
    )


def _offered_as_gpus(state: LiveCluster) -> QueueFinding | None:
    """Instances that wait by the name of their profile, where nodes offer them as whole GPUs.

    The device plugin does so by its strategy `single`; `mixed` has a name for each profile.
    """
    named = {profile for node in state.nodes for profile in node.slices}
    whole, models = free_gpus(state), {node.name: node.model for node in state.nodes}
    waiting = [pod for pod in state.waiting if pod.slices and not named & pod.slices.keys()]
    for profile in dict.fromkeys(profile for pod in waiting for profile in pod.slices):
        free = sum(n for name, n in whole.items() if models[name].endswith(f"-MIG-{profile}"))
        asking = [pod for pod in waiting if profile in pod.slices]
        helped = min(free, sum(pod.slices[profile] for pod in asking))
        if helped:
            return found(
                "mig-mismatch",
                way="single",
                lost_gpus=helped * slice_share(profile),
                counted="of compute in instances that are waited for by another name",
                confidence=0.95,
                summary=f"{_named(helped, profile)} are waited for by that name, while nodes offer"
                f" {free} free ones as nvidia.com/gpu: their MIG strategy is single",
                evidence={"pods": len(asking), "free_instances": free},
                where=[pod.name for pod in asking],
                filled={"profile": profile},
            )
    return None


def _gpus(slices: dict[str, int]) -> float:
    return sum(number * _share(name) for name, number in slices.items())


def _share(name: str) -> float:
    return 1.0 if name == WHOLE else slice_share(name)


def _named(number: int, name: str) -> str:
    if name == WHOLE:
        return several(number, "whole GPU")
    return f"{several(number, 'slice')} of {name}"
