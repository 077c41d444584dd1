"""Nodes of Slurm as the doctor looks at them, and what they have given away beside known jobs."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.queue.doctor.state import LiveNode, LivePod
from ridgeline.queue.node_room import UNCOUNTED
from ridgeline.queue.readers.slurm_nodes import SlurmNodes
from ridgeline.queue.readers.slurm_printed import SlurmPrint, node_names
from ridgeline.queue.readers.slurm_resources import gpus_by_kind, profile_in

_MANY_MILLI = 10**9
"""Cores of a node that does not say how many it has."""


def live_node(name: str, nodes: SlurmNodes) -> LiveNode:
    """A node with GPUs."""
    kinds = gpus_by_kind(nodes.gres[name])
    whole = {kind: count for kind, count in kinds.items() if not profile_in(kind)}
    memory = nodes.memory_gibibytes.get(name)
    cpus, capped_by = nodes.most_cpus.get(name, (nodes.cpus.get(name), ""))
    return LiveNode(
        name=name,
        num_gpus=sum(whole.values()),
        slices={one: count for kind, count in kinds.items() if (one := profile_in(kind))},
        cpu_milli=_MANY_MILLI if cpus is None else round(1000 * cpus),
        capped_by=capped_by,
        memory_bytes=UNCOUNTED if memory is None else round(memory * 2**30),
        model=next(iter(whole)) if len(whole) == 1 else "",
        closed=": ".join(one for one in (nodes.closed.get(name, ""), nodes.reasons.get(name, ""))
                         if one and name in nodes.closed),
        labels={f"node {name}": "yes"}
        | {f"partition {one}": "yes" for one, inside in nodes.partitions.items()
                if name in inside} | {f"GPUs {one}": "yes" for one in whole if one}
        | {f"feature {one}": "yes" for one in nodes.features.get(name, ())},
    )  # fmt: skip


def give_reservations(nodes: SlurmNodes, printed: SlurmPrint | None) -> None:
    """Say of nodes that take no jobs since they are reserved by what, and for whom."""
    for row in printed.rows if printed else ():
        whom = f" for {row.cells['FOR']}" if row.cells.get("FOR") else ""
        until = f" until {row.cells['END_TIME']}" if row.cells.get("END_TIME") else ""
        for name in node_names(row, "NODELIST") if row.cells["STATE"] == "ACTIVE" else ():
            if any(word in nodes.closed.get(name, "") for word in ("resv", "reserved", "maint")):
                nodes.closed[name] = f"reserved by {row.cells['RESV_NAME']}{whom}{until}"


def give_reasons(nodes: SlurmNodes, printed: SlurmPrint | None) -> None:
    """Say of nodes what `sinfo -R` has of them."""
    for row in printed.rows if printed else ():
        for name in node_names(row, "NODELIST"):
            nodes.reasons.setdefault(name, row.cells["REASON"])


def unlisted_use(nodes: SlurmNodes, pods: Sequence[LivePod]) -> list[LivePod]:
    """What nodes say is given away beside the jobs that were given: jobs of others hold it."""
    found = []
    for name in {**nodes.used, **nodes.cpus_used, **nodes.gibibytes_used}:
        if name not in nodes.gpus:
            continue
        held = [pod for pod in pods if pod.node == name]
        gpus, more = _gpus_beside(nodes.used.get(name, ""), held)
        cpus = 1000 * nodes.cpus_used.get(name, 0.0) - sum(pod.cpu_milli for pod in held)
        memory = 2**30 * nodes.gibibytes_used.get(name, 0.0)
        memory -= sum(pod.memory_bytes for pod in held)
        if more or gpus > 0 or cpus >= 1.0 or memory >= 1.0:
            found.append(
                LivePod(
                    name=f"unlisted on {name}", workload=f"unlisted on {name}", node=name,
                    num_gpus=gpus, slices=more, gang=True, cpu_milli=max(0, round(cpus)),
                    memory_bytes=max(0, round(memory)),
                )
            )  # fmt: skip
    return found


def _gpus_beside(text: str, held: Sequence[LivePod]) -> tuple[int, dict[str, int]]:
    """Whole GPUs and slices that are given away and that no known job holds."""
    used = gpus_by_kind(text)
    gpus = sum(count for kind, count in used.items() if not profile_in(kind))
    slices = {one: count for kind, count in used.items() if (one := profile_in(kind))}
    more = {
        one: rest
        for one, count in slices.items()
        if (rest := count - sum(pod.slices.get(one, 0) for pod in held)) > 0
    }
    rest = gpus - sum(pod.num_gpus for pod in held)
    return (max(0, rest) if more or not slices else 0), more
