"""What a Slurm cluster does now, as `sinfo`, `squeue` and `sacct` print it.

    sinfo -N -o "%N|%G|%T|%P" > sinfo.txt
    squeue -o "%i|%T|%P|%D|%b|%M|%l|%N|%r|%Q|%V" > squeue.txt
    sacct -aX --parsable2 -S now-30days -o JobID,Submit,ElapsedRaw,State,Partition,AllocTRES

Fields as in their manual pages; what they print with `--json`, and `scontrol show node` and `show
job`, will do as well. Nodes are those of one partition that take jobs; whoever runs on
them, or waits for a partition that shares nodes with it, stands in the way. Jobs that are held, or
wait for others or for their time, do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.queue.queue_now import AskedNow, HeldNow, QueueNow
from ridgeline.queue.readers.slurm_jobs import (
    HOLDS,
    WAITS,
    age_seconds,
    asked_resources,
    job_gpus,
    limit_seconds,
    priority_of,
    tasks_of_array,
    waits_on_purpose,
)
from ridgeline.queue.readers.slurm_nodes import SlurmNodes, slurm_nodes
from ridgeline.queue.readers.slurm_printed import (
    SACCT,
    SINFO,
    SQUEUE,
    SlurmRow,
    cell,
    node_names,
    printed_in_files,
)
from ridgeline.queue.readers.slurm_resources import gpu_types


def read_slurm_now(paths: Sequence[Path], *, partition: str = "", gpu_type: str = "") -> QueueNow:
    """The queue of one partition.

    Args:
        paths: What sinfo, squeue and sacct print, in any order.
        partition: The one that a job is sent to; empty: the cluster's default.
        gpu_type: The GPUs that it insists on; empty: any.

    Raises:
        InputError: A file is none of them, one is lacking, or a line makes no sense; which.
    """
    printed = printed_in_files(paths, "--state")
    for kind, how in (("sinfo", SINFO), ("squeue", SQUEUE), ("sacct", SACCT)):
        if kind not in printed:
            raise InputError(f"--state: what {kind} prints is lacking; print it with {how}")
    for row in printed["sinfo"].rows:
        cell(row, "PARTITION", SINFO)
    nodes = slurm_nodes(printed["sinfo"].rows, printed["sinfo"].where)
    chosen = _partition(nodes, partition)
    of_type = {name for name, kinds in nodes.types.items() if not gpu_type or gpu_type in kinds}
    mine = {name for name in nodes.partitions[chosen] & of_type if name not in nodes.closed}
    rivals = {name for name, others in nodes.partitions.items() if others & mine}
    running, waiting = _queued(printed["squeue"].rows, nodes, (mine, rivals), gpu_type)
    traced = printed["sacct"].ended().jobs
    lasted = zip(traced.queues, traced.duration_seconds.tolist(), strict=True)
    return QueueNow(
        node_gpus=tuple(nodes.gpus[name] for name in sorted(mine)),
        running=tuple(running),
        waiting=tuple(waiting),
        ended_seconds=tuple(
            one for name, one in lasted if one > 0 and (not name or name == chosen)
        ),
        policy="easy",
        cure=f"print more of partition {chosen}'s past: {SACCT}",
    )


def _partition(nodes: SlurmNodes, asked: str) -> str:
    chosen = asked or nodes.usual
    if not chosen and len(nodes.partitions) == 1:
        chosen = next(iter(nodes.partitions))
    known = ", ".join(sorted(nodes.partitions))
    if not chosen:
        raise InputError(
            f"--state: sinfo marks no partition as the default; name one of {known} as"
            " slurm.partition in --cluster"
        )
    if chosen not in nodes.partitions:
        raise InputError(f"slurm.partition is {chosen!r}; sinfo knows {known}")
    return chosen


def _queued(
    rows: Sequence[SlurmRow], nodes: SlurmNodes, place: tuple[set[str], set[str]], gpu_type: str
) -> tuple[list[HeldNow], list[AskedNow]]:
    """Jobs on nodes of ours, and jobs that wait for a partition that shares some with it."""
    mine, rivals = place
    held: list[HeldNow] = []
    asked: list[tuple[tuple[float, str, int], AskedNow, int]] = []
    for number, row in enumerate(rows):
        state = cell(row, "STATE", SQUEUE).upper()
        gpus = job_gpus(row)
        limit = limit_seconds(row.cells.get("TIME_LIMIT", ""), f"{row.at}: TIME_LIMIT")
        if not gpus or state not in HOLDS | WAITS:
            continue
        if state in HOLDS:
            names = [name for name in node_names(row, "NODELIST") if name in nodes.gpus]
            share = sum(name in mine for name in names) / max(1, len(names))
            if share:
                mean = max(1, round(gpus * share))
                held.append(
                    HeldNow(num_gpus=mean, age_seconds=age_seconds(row), limit_seconds=limit)
                )
            continue
        kinds = gpu_types(asked_resources(row))
        if (
            waits_on_purpose(row)
            or not rivals.intersection(cell(row, "PARTITION", SQUEUE).split(","))
            or (gpu_type and kinds and gpu_type not in kinds)
        ):
            continue
        rank = (-priority_of(row), row.cells.get("SUBMIT_TIME", ""), number)
        asked.append((rank, AskedNow(num_gpus=gpus, limit_seconds=limit), tasks_of_array(row)))
    asked.sort(key=lambda one: one[0])
    return held, [one for _, one, times in asked for _ in range(times)]
