"""Nodes have GPUs left but not the CPU or memory that pods with GPUs ask for."""

from __future__ import annotations

from ridgeline.queue.doctor.room import free_gpus, starting_now
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster, several
from ridgeline.records.queue_finding import QueueFinding


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs of waiting pods that would start at once if CPU and memory were no matter."""
    waiting = {pod.name: pod for pod in state.waiting if pod.num_gpus}
    if not waiting:
        return None
    now = set(starting_now(state))
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
    dry = [name for name in free
           if left[name][0] < asked.cpu_milli or left[name][1] < asked.memory_bytes]  # fmt: skip
    what = "CPU" if any(left[name][0] < asked.cpu_milli for name in dry) else "memory"
    return found(
        "starved-of-cpu",
        lost_gpus=lost,
        counted="asked for by waiting pods for which GPUs are free, but no CPU or memory beside",
        confidence=0.9,
        summary=f"{several(len(helped), 'pod')} wait for {what} beside free GPUs: on"
        f" {several(len(dry), 'node')} {sum(free[name] for name in dry)} GPUs stand idle;"
        f" pods without GPUs hold {others / 1000:,.0f} cores there",
        evidence={
            "idle_gpus": sum(free[name] for name in dry),
            "nodes_without_room": len(dry),
            "cores_held_without_gpus": others / 1000,
            "asked_cores": asked.cpu_milli / 1000,
            "asked_memory_bytes": asked.memory_bytes,
        },
        where=[*sorted(dry, key=lambda name: -free[name])[:10], *(pod.name for pod in helped[:10])],
    )
