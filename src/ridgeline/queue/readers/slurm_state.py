"""A Slurm cluster at one moment, as the doctor looks at it: its nodes, and each job a pod a node.

    sinfo -N -o "%N|%G|%T|%P|%c|%m" > sinfo.txt
    squeue -o "%i|%T|%P|%D|%b|%M|%l|%N|%r|%Q|%V|%S|%C|%m" > squeue.txt

What they print with `--json` and `scontrol show node|job` will do as well, and tell more: cores and
memory of jobs as they were given. `scontrol show reservation` and `sinfo -R` say why nodes are
kept, sacctmgr what accounts may have, `scontrol show licenses` which are used up, slurm.conf how
jobs are chosen, and what sacct prints how long they run. Slurm starts jobs whole, so all of them
are gangs. Partitions, features and kinds of GPU are labels of nodes; types that are MIG profiles
are slices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.quantity import several
from ridgeline.queue.doctor.constraints import Constraints, Requirement
from ridgeline.queue.doctor.state import CONFIGURING, SLURM, LiveCluster, LivePod, ToldReason
from ridgeline.queue.readers import slurm
from ridgeline.queue.readers.hostlist import host_names
from ridgeline.queue.readers.moments import moment_seconds
from ridgeline.queue.readers.slurm_beside import CONF, REASONS, SDIAG
from ridgeline.queue.readers.slurm_described import (
    SINFO_STATE,
    completed_partitions,
    described_nodes,
)
from ridgeline.queue.readers.slurm_jobs import (
    HOLDS,
    LIMITS,
    WAITS,
    age_seconds,
    asked_resources,
    features_asked,
    limit_seconds,
    priority_of,
    reason_of,
    tasks_of_array,
    waits_on_purpose,
)
from ridgeline.queue.readers.slurm_live_nodes import (
    give_reasons,
    give_reservations,
    live_node,
    unlisted_use,
)
from ridgeline.queue.readers.slurm_nodes import SlurmNodes
from ridgeline.queue.readers.slurm_printed import (
    SQUEUE,
    SlurmPrint,
    SlurmRow,
    cell,
    node_names,
    printed_in_files,
)
from ridgeline.queue.readers.slurm_reasons import SlurmLimits, slurm_limits, told_of_job
from ridgeline.queue.readers.slurm_resources import (
    cores_of,
    gpus_by_kind,
    memory_bytes_of,
    num_gpus,
    profile_in,
)
from ridgeline.queue.readers.slurm_untold import with_gpus_of_nodes
from ridgeline.queue.readers.traced_jobs import BadRows

SQUEUE_STATE = 'squeue -o "%i|%T|%P|%D|%b|%M|%l|%N|%r|%Q|%V|%S|%C|%m" > squeue.txt'
STATE_CURE = f"print {SINFO_STATE}; {SQUEUE_STATE}"
_LEAST_MILLI = 1000
"""Slurm gives a job one core of each node at least."""
_COMPLETING = ("COMPLETING", "CG")
_CONFIGURING = ("CONFIGURING", "CF")


def read_slurm_state(paths: Sequence[Path]) -> LiveCluster:
    """The cluster that files of sinfo, squeue and, if given, sacct tell of.

    Raises:
        InputError: A file is none of them, nodes or jobs are lacking, or a line makes no sense.
    """
    printed = printed_in_files(paths, "")
    nodes, partitions, notes = described_nodes(printed, paths[0])
    if "squeue" not in printed:
        raise InputError(f"{paths[0]}: what squeue prints is lacking; print it with {SQUEUE_STATE}")
    give_reservations(nodes, printed.get("reservations"))
    give_reasons(nodes, printed.get(REASONS))
    limits = slurm_limits(printed)
    settings = dict(printed[CONF].rows[0].cells) if CONF in printed else {}
    for row in printed[SDIAG].rows if SDIAG in printed else ():
        settings |= {f"sdiag {name}": value for name, value in row.cells.items()}
    linear = settings.get("selecttype", "").casefold() == "select/linear"
    rows, untold = with_gpus_of_nodes(completed_partitions(printed["squeue"].rows, nodes), nodes)
    jobs = [_job(row, linear=linear) for row in rows]
    kept = [job for job in jobs if job.state in HOLDS | WAITS]
    now, timeless = _now(kept)
    closed = {row.cells["PARTITION"]: row.cells["UP"] for row in partitions
              if row.cells["UP"] != "UP"}  # fmt: skip
    pods = [pod for job in kept for pod in _pods(job, nodes, limits, now, closed)]
    unlisted = unlisted_use(nodes, pods)
    return LiveCluster(
        nodes=tuple(live_node(name, nodes) for name in nodes.gpus),
        pods=(*pods, *unlisted, *_ended(printed.get("sacct")),
              *given_up_runs(printed.get("sacct"))),
        num_unlisted_gpus=sum(pod.num_gpus + sum(pod.slices.values()) for pod in unlisted),
        num_homeless=sum(job.gpus > 0 and job.state in HOLDS and not job.known(nodes)
                         for job in kept),
        now_seconds=now,
        settings=settings,
        notes=notes + timeless + untold + _of_completing(kept),
        scheduler=SLURM,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A line of squeue."""

    row: SlurmRow
    name: str
    state: str
    kinds: dict[str, int]
    """GPUs on all of its nodes, by type."""
    cpus: float
    memory_bytes: float
    hosts: tuple[str, ...]
    """The nodes that it holds; empty: it waits."""
    num_nodes: int
    ran_seconds: float
    submitted_seconds: float | None
    started_seconds: float | None
    most_seconds: float | None
    """How long it may run by its time limit."""
    exclusive: bool

    @property
    def gpus(self) -> int:
        """GPUs that are no MIG instances."""
        return sum(count for kind, count in self.kinds.items() if not profile_in(kind))

    @property
    def slices(self) -> dict[str, int]:
        """MIG instances by their profile."""
        return {found: count for kind, count in self.kinds.items() if (found := profile_in(kind))}

    @property
    def latest(self) -> float | None:
        """A moment by which the state was not read yet; None: it mentions none."""
        if self.state in _COMPLETING and self.started_seconds is None:
            return self.submitted_seconds
        since = self.started_seconds if self.hosts else None
        since = self.submitted_seconds if since is None else since
        return None if since is None else since + self.ran_seconds

    def known(self, nodes: SlurmNodes) -> list[str]:
        """Its nodes of those that have GPUs."""
        return [one for one in self.hosts if one in nodes.gpus]


def _job(row: SlurmRow, *, linear: bool) -> _Job:
    state = cell(row, "STATE", SQUEUE).upper()
    holds = state in HOLDS
    tres = {"AllocTRES": asked_resources(row), "NNodes": row.cells.get("NODES", "1")}
    if "cpu=" not in tres["AllocTRES"]:
        tres |= {"AllocCPUS": row.cells.get("CPUS", "")}
        memory = row.cells.get("MIN_MEMORY", "")
        whole = memory[:1].isdigit() and not memory.endswith(("n", "c"))
        tres |= {"ReqMem": f"{memory}n" if whole else memory}
    hosts = tuple(node_names(row, "NODELIST")) if holds else ()
    count = row.cells.get("NODES", "1").partition("-")[0]
    return _Job(
        row=row,
        name=cell(row, "JOBID", SQUEUE),
        state=state,
        kinds=gpus_by_kind(asked_resources(row), int(count) if count.isdigit() else 1),
        cpus=cores_of(tres),
        memory_bytes=memory_bytes_of(tres, f"{row.at}: memory"),
        hosts=hosts,
        num_nodes=max(1, len(hosts) or (int(count) if count.isdigit() else 1)),
        ran_seconds=age_seconds(row) if holds else 0.0,
        submitted_seconds=_moment(row, "SUBMIT_TIME"),
        started_seconds=_moment(row, "START_TIME") if holds else None,
        most_seconds=_limit(row),
        exclusive=linear or row.cells.get("OVER_SUBSCRIBE", "") in ("NO", "EXCLUSIVE"),
    )


def _now(jobs: Sequence[_Job]) -> tuple[float | None, tuple[str, ...]]:
    """The moment by which the state was read at the earliest, and what is said if none is told.

    Where only how long jobs have run is told, time counts from the first of these starts.
    """
    told = [job.latest for job in jobs if job.latest is not None]
    if told:
        return max(told), ()
    longest = max((job.ran_seconds for job in jobs if job.hosts), default=0.0)
    if not longest:
        return None, ()
    note = "squeue tells no times of submission: every job that waits counts, however new it is"
    return longest, (note,)


def _of_completing(jobs: Sequence[_Job]) -> tuple[str, ...]:
    """What to print where nothing tells for how long jobs have been completing."""
    silent = [job for job in jobs if job.state in _COMPLETING and job.started_seconds is None]
    gpus = sum(job.gpus for job in silent)
    if not gpus:
        return ()
    note = f"{several(len(silent), 'job')} of {several(gpus, 'GPU')} are completing, nothing tells"
    return (f"{note} since when: scontrol show job does",)


def _limit(row: SlurmRow) -> float | None:
    text = row.cells.get("TIME_LIMIT", "")
    return limit_seconds(text, f"{row.at}: TIME_LIMIT") if text[:1].isdigit() else None


def _moment(row: SlurmRow, column: str) -> float | None:
    text = row.cells.get(column, "")
    found = moment_seconds(text)
    if found is not None and math.isnan(found):
        raise InputError(f"{row.at}: {column} is {text!r}, no time")
    return found or None


def _pods(
    job: _Job, nodes: SlurmNodes, limits: SlurmLimits, now: float | None, closed: Mapping[str, str]
) -> list[LivePod]:
    """One for each node of a job; a job without GPUs counts where it shares nodes with others."""
    known = job.known(nodes)
    if job.hosts and not known:
        return []
    if not job.kinds and not job.hosts:
        return []
    started = job.started_seconds
    if started is None and job.hosts and now is not None:
        started = now - job.ran_seconds
    whole, rest = divmod(job.gpus, job.num_nodes)
    limited = reason_of(job.row).casefold().startswith(LIMITS)
    limit = limits.named(job.row) if limited else ""
    told = None if job.hosts else limits.with_licenses(told_of_job(job.row))
    told = told or (None if job.hosts else _kept_out(job, closed))
    completing = job.state in _COMPLETING and job.started_seconds is not None
    tasks = 1 if job.hosts else tasks_of_array(job.row)
    places = known or [""] * job.num_nodes
    many = len(places) > 1 or tasks > 1
    return [
        LivePod(
            name=f"{job.name}/{task * len(places) + number}" if many else job.name,
            workload=f"job {job.name}" + (f"/{task}" if tasks > 1 else ""),
            ranks=job.num_nodes > 1,
            gang=True,
            node=place,
            num_gpus=whole + (number < rest),
            cpu_milli=round(1000 * job.cpus / job.num_nodes) or _LEAST_MILLI * (not place),
            memory_bytes=round(job.memory_bytes / job.num_nodes),
            slices={one: max(1, count // job.num_nodes) for one, count in job.slices.items()},
            constraints=Constraints() if place else _nodes_for(job, nodes),
            gated=not place and (bool(limit or told) or waits_on_purpose(job.row)),
            stalled=CONFIGURING if place and job.state in _CONFIGURING else "",
            told_of={"limit": limit} if limit else {},
            told=told,
            deleted_seconds=started + job.ran_seconds if completing and started else None,
            created_seconds=job.submitted_seconds,
            started_seconds=started,
            most_seconds=job.most_seconds,
            exclusive=job.exclusive,
            priority=round(priority_of(job.row)),
        )
        for task in range(tasks)
        for number, place in enumerate(places)
    ]


def _kept_out(job: _Job, closed: Mapping[str, str]) -> ToldReason | None:
    """Why none of its partitions takes a job in, if none does."""
    named = [one for one in job.row.cells.get("PARTITION", "").split(",") if one]
    states = [closed[one] for one in named if one in closed]
    if not named or len(states) < len(named):
        return None
    return ToldReason(way="partition", said=f"partition {named[0]} is {states[0]} for jobs")


def _nodes_for(job: _Job, nodes: SlurmNodes) -> Constraints:
    """The nodes of any of the partitions that a job may be in, with the kinds that it asks for."""
    told = any(nodes.partitions)
    names = [one for one in job.row.cells.get("PARTITION", "").split(",") if one and told]
    kinds = [one for one in job.kinds if one and not profile_in(one)]
    only = host_names(job.row.cells.get("REQ_NODES", "")) or []
    features = features_asked(job.row) if len(nodes.features) == len(nodes.gpus) else ()
    return Constraints(
        selector=(
            *(Requirement(key=f"GPUs {one}", operator="Exists") for one in kinds),
            *(Requirement(key=f"feature {one}", operator="Exists") for one in features),
            *(Requirement(key=f"node {one}", operator="Exists") for one in only[: len(only) == 1]),
        ),
        terms=tuple((Requirement(key=f"partition {one}", operator="Exists"),) for one in names),
    )


def _ended(printed: SlurmPrint | None) -> list[LivePod]:
    """Runs that have ended, for how long they took."""
    if printed is None:
        return []
    jobs = printed.ended().jobs
    lasted: Mapping[str, tuple[float, float]] = {
        name: (seconds, gpus)
        for name, seconds, gpus in zip(jobs.names, jobs.duration_seconds.tolist(),
                                       jobs.num_gpus.tolist(), strict=True)
        if seconds > 0
    }  # fmt: skip
    return [
        LivePod(name=f"ended {name}", workload=f"ended {name}", num_gpus=max(1, int(gpus)),
                done=True, started_seconds=0.0, ended_seconds=seconds)
        for name, (seconds, gpus) in lasted.items()
    ]  # fmt: skip


_ENDED_BY = {"PREEMPTED": "scheduler", "NODE_FAIL": "node", "REQUEUED": "api"}


def given_up_runs(printed: SlurmPrint | None) -> list[LivePod]:
    """A pod that has ended for each run that others ended, with when it began and ended.

    Others preempt or requeue it, or it is lost with its node; sacct tells of each run of a job that
    was requeued with `-D` (`--duplicates`).
    """
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
