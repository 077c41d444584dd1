"""Which jobs of a trace the empty cluster has room for, and what is said of the others."""

from __future__ import annotations

from ridgeline.errors import InputError
from ridgeline.queue.cluster import QueuedCluster
from ridgeline.queue.jobs import Jobs
from ridgeline.queue.pools import counted_jobs, heeded_jobs
from ridgeline.queue.simulate import unfit_jobs
from ridgeline.queue.wants import PLAIN, kinds_in


def fitting_jobs(jobs: Jobs, cluster: QueuedCluster, *, skip_unfit: bool) -> Jobs:
    """The jobs that the empty cluster has room for, without what it does not count.

    Raises:
        InputError: A job does not fit and `skip_unfit` does not leave it out, or none fits.
    """
    jobs = counted_jobs(heeded_jobs(jobs, cluster), cluster)
    unfit = unfit_jobs(jobs, cluster)
    if not unfit:
        return jobs
    if not skip_unfit:
        first = unfit[0]
        others = len(unfit) - 1
        more = f" and {others:,} more job{'' if others == 1 else 's'}" if others else ""
        has, cure = _kinds_here(jobs, first, cluster)
        raise InputError(
            f"job {jobs.names[first]} asks for {_asked_for(jobs, first)}{more}, which the empty"
            f" cluster of {cluster.num_gpus:,} does not have in one piece{has};"
            f" give {cure}, or --skip-unfit to leave such jobs out"
        )
    if len(unfit) == len(jobs):
        raise InputError(f"none of the {len(jobs):,} jobs fits {cluster.num_gpus:,} GPUs")
    gone = set(unfit)
    return jobs.chosen([place for place in range(len(jobs)) if place not in gone])


def _asked_for(jobs: Jobs, place: int) -> str:
    """What a job asks for, in words."""
    count = float(jobs.num_gpus[place])
    gpus = f"{count:g} of a GPU"
    if count.is_integer():
        gpus = f"{count:,.0f} GPU{'' if count == 1 else 's'}"
    wants = jobs.wants[place] if jobs.wants else PLAIN
    words = [
        _of_kind(wants.gpu_type),
        f"with {wants.cpus:g} cores" if wants.cpus else "",
        f"with {wants.memory_bytes / 2**30:g} GiB" if wants.memory_bytes else "",
        f"within one {wants.level}" if wants.required and wants.level != "node" else "",
        "that are not spot" if wants.on_demand else "",
    ]
    return " ".join([gpus, *(word for word in words if word)])


def _of_kind(gpu_type: str) -> str:
    """Which GPUs a job insists on, in words."""
    kinds = [one.removeprefix("!") for one in kinds_in(gpu_type)]
    if gpu_type.startswith("!"):
        return f"of another type than {' or '.join(kinds)}"
    return f"of type {gpu_type}" if kinds else ""


def _kinds_here(jobs: Jobs, place: int, cluster: QueuedCluster) -> tuple[str, str]:
    """Which kinds of GPU the nodes have, where a job asks for another one, and what to give."""
    asked = kinds_in(jobs.wants[place].gpu_type) if jobs.wants else []
    here = {one.gpu_type for one in cluster.nodes if one.gpu_type}
    if not asked or here & set(asked):
        return "", "a larger cluster"
    if not here:
        return " (its nodes name no type)", "nodes with a gpu_type (--cluster)"
    return f" (its nodes have {', '.join(sorted(here))})", "a larger cluster"
