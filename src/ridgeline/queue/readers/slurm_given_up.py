"""Runs of Slurm's jobs that others ended: preempted, requeued, or lost with their node, by sacct.

sacct tells of each run of a job that was requeued with `-D` (`--duplicates`).
"""

from __future__ import annotations

import math

from ridgeline.queue.doctor.state import LivePod, ToldReason
from ridgeline.queue.readers import slurm
from ridgeline.queue.readers.moments import moment_seconds
from ridgeline.queue.readers.slurm_printed import SlurmPrint
from ridgeline.queue.readers.slurm_resources import num_gpus
from ridgeline.queue.readers.traced_jobs import BadRows

_ENDED_BY = {"PREEMPTED": "scheduler", "NODE_FAIL": "node", "REQUEUED": "api"}


def given_up_runs(printed: SlurmPrint | None) -> list[LivePod]:
    """A pod that has ended for each run that others ended, with when it began and ended."""
    if printed is None:
        return []
    rows = [(row.at, dict(row.cells)) for row in printed.rows]
    if printed.text:
        rows += slurm.table_lines(printed.text, printed.where, BadRows(skip=True))[1]
    found = []
    for at, cells in rows:
        state = cells.get("State", "").split(" ")[0].rstrip("+").upper()
        name = cells.get("JobID") or cells.get("JobIDRaw", "")
        begins, ends = (moment_seconds(cells.get(one, "")) for one in ("Start", "End"))
        gpus = num_gpus(cells.get("AllocTRES") or cells.get("ReqTRES", ""), cells)
        if state not in _ENDED_BY or not begins or not ends or not gpus:
            continue
        if not math.isnan(begins) and not math.isnan(ends) and ends > begins:
            found.append(
                LivePod(
                    name=f"{name} of {at}", workload=f"job {name}", num_gpus=gpus, done=True,
                    evicted=ToldReason(way=_ENDED_BY[state], said=state), started_seconds=begins,
                    ended_seconds=ends,
                )
            )  # fmt: skip
    return found
