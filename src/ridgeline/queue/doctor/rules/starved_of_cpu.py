"""Nodes have GPUs left but not the CPU, memory, disk or network cards that pods ask beside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from ridgeline.quantity import several
from ridgeline.queue.doctor.other_resources import OtherResources
from ridgeline.queue.doctor.room import BeforeAndCured, ClusterAhead, free_gpus, starting_now
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.rules.whole_nodes_for_few import shared
from ridgeline.queue.doctor.state import LiveCluster, LivePod
from ridgeline.records.queue_finding import QueueFinding

_SHORT = "nodes_short_of_"


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs of waiting pods that would start at once if nothing but GPUs mattered."""
    waiting = {pod.name: pod for pod in state.waiting if pod.num_gpus}
    if not waiting:
        return None
    # What exclusive jobs leave of their nodes is for another rule.
    now = set(starting_now(shared(state)))
    helped = [waiting[name] for name in starting_now(state, pure_gpus=True) if name not in now]
    if not helped:
        return None
    lost = sum(pod.num_gpus for pod in helped)
    free = free_gpus(state)
    left = {node.name: [node.cpu_milli, node.memory_bytes] for node in state.nodes}
    others = 0
    for pod in state.running:
        if pod.node in left:
            left[pod.node][0] -= pod.cpu_milli
            left[pod.node][1] -= pod.memory_bytes
            if pod.node in free and not pod.num_gpus:
                others += pod.cpu_milli
    asked = max(helped, key=lambda pod: pod.num_gpus)
    lacking = {
        name: [*(["CPU"] if left[name][0] < asked.cpu_milli else []),
               *(["memory"] if left[name][1] < asked.memory_bytes else []), *others_lacking]
        for name, others_lacking in _short_of_others(state, asked, free).items()
    }  # fmt: skip
    dry = [name for name, short in lacking.items() if short]
    counted = Counter(one for name in dry for one in lacking[name])
    what = "CPU" if "CPU" in counted else next(iter(counted), "memory")
    caps = {node.capped_by for node in state.nodes if node.name in dry and node.capped_by}
    why = f" ({min(caps)})" if caps and what == "CPU" else ""
    given = [pod for pod in helped if what.lower() in pod.defaulted]
    by_default = 2 * len(given) > len(helped)
    if by_default:
        why += (
            f" that a LimitRange gives them by default ({given[0].name}: {_amount(given[0], what)})"
        )
    return found(
        "starved-of-cpu",
        lost_gpus=lost,
        counted="asked for by waiting pods for which GPUs are free, but not what they ask beside",
        confidence=0.9,
        way="by-default" if by_default else "",
        summary=f"{several(len(helped), 'pod')} wait for {what}{why} beside free GPUs: on"
        f" {several(len(dry), 'node')} {sum(free[name] for name in dry)} GPUs stand idle;"
        f" pods without GPUs hold {others / 1000:,.0f} cores there",
        evidence={
            "idle_gpus": sum(free[name] for name in dry),
            "nodes_without_room": len(dry),
            "cores_held_without_gpus": others / 1000,
            "asked_cores": asked.cpu_milli / 1000,
            "asked_memory_bytes": asked.memory_bytes,
            **{f"{_SHORT}{one}": times for one, times in sorted(counted.items())},
        },
        where=[*sorted(dry, key=lambda name: -free[name])[:10], *(pod.name for pod in helped[:10])],
        filled={"namespace": asked.name.partition("/")[0]},
    )


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """Pods that wait ask for no cores and memory that they do not find beside free GPUs."""
    short_of = {one.removeprefix(_SHORT) for one in finding.evidence if one.startswith(_SHORT)}
    if others := sorted(short_of - {"CPU", "memory"}):
        return f"the simulator counts GPUs, cores and memory, not {', '.join(others)}"
    pods = [pod if pod.node else replace(pod, cpu_milli=0, memory_bytes=0) for pod in state.pods]
    return ClusterAhead(state=state), ClusterAhead(state=replace(state, pods=tuple(pods)))


def _amount(pod: LivePod, what: str) -> str:
    if what == "CPU":
        return f"{pod.cpu_milli / 1000:g} cores"
    return f"{pod.memory_bytes / 2**30:.0f} GiB"


def _short_of_others(
    state: LiveCluster, asked: LivePod, names: Iterable[str]
) -> dict[str, list[str]]:
    """By node, what it has too little of for a pod, beside cores, memory and GPUs."""
    left = OtherResources(state.nodes, len(state.nodes))
    places = {node.name: place for place, node in enumerate(state.nodes)}
    for pod in state.running:
        if pod.node in places:
            left.put(pod, places[pod.node])
    return {name: left.short_of(asked, places[name]) for name in names}
