"""GPUs of jobs that squeue does not tell: from what their nodes have given away, or have.

squeue's own columns name a job's nodes and not its GPUs. Jobs that run are taken to have what their
nodes say is given away, or else all that these have, in equal parts. Jobs that wait are taken to
want one GPU of each node, or where nodes do not say what is given away, all of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ridgeline.quantity import several
from ridgeline.queue.readers.slurm_jobs import HOLDS, WAITS, tells_gpus
from ridgeline.queue.readers.slurm_nodes import SlurmNodes
from ridgeline.queue.readers.slurm_printed import SQUEUE, SlurmRow, node_names
from ridgeline.queue.readers.slurm_resources import num_gpus


def with_gpus_of_nodes(
    rows: Sequence[SlurmRow], nodes: SlurmNodes
) -> tuple[list[SlurmRow], tuple[str, ...]]:
    """The lines of squeue, each with GPUs, and how those that do not tell theirs were counted."""
    if all(tells_gpus(row) for row in rows):
        return list(rows), ()
    hosts = [_hosts(row) if row.cells.get("STATE") in HOLDS else [] for row in rows]
    sharing = Counter(name for names in hosts for name in names)
    given_away = len(nodes.used) == len(nodes.gpus)
    found, counted = [], 0
    for row, names in zip(rows, hosts, strict=True):
        if tells_gpus(row):
            found.append(row)
            continue
        if names:
            gpus = sum(_part(nodes, name, sharing[name]) for name in names if name in nodes.gpus)
        else:
            gpus = _wanted(row, nodes, given_away=given_away)
        counted += gpus > 0
        cells = {**row.cells, "TRES_ALLOC": f"gres/gpu={gpus}"}
        found.append(SlurmRow(at=row.at, where=row.where, cells=cells))
    if not counted:
        return found, ()
    wants = "one GPU of each of its nodes" if given_away else "whole nodes"
    has = "what its nodes have given away" if given_away else "all GPUs of its nodes"
    note = (
        f"squeue does not tell the GPUs of {several(counted, 'job')}: one that runs is taken to"
        f" have {has}, one that waits to want {wants}; print {SQUEUE}"
    )
    return found, (note,)


def _part(nodes: SlurmNodes, name: str, sharing: int) -> int:
    gpus = num_gpus(nodes.used[name]) if name in nodes.used else nodes.gpus[name]
    return -(-gpus // max(1, sharing))


def _wanted(row: SlurmRow, nodes: SlurmNodes, *, given_away: bool) -> int:
    """GPUs of a job that waits: none where a node of its partitions has none."""
    if row.cells.get("STATE") not in WAITS:
        return 0
    named = row.cells.get("PARTITION", "").split(",")
    known = [one for one in named if nodes.partitions.get(one)]
    inside = {name for one in known for name in nodes.partitions[one]} or set(nodes.gpus)
    if (named != [""] and not known) or any(one in nodes.without_gpus for one in named):
        return 0
    count = row.cells.get("NODES", "1").partition("-")[0]
    each = 1 if given_away else max(nodes.gpus[name] for name in inside)
    return each * (int(count) if count.isdigit() else 1)


def _hosts(row: SlurmRow) -> list[str]:
    return node_names(row, "NODELIST") if row.cells.get("NODELIST") else []
