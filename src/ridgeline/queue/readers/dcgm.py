"""Utilisation of GPUs by pod or job: samples of DCGM's exporter as CSV, a row per sample and GPU.

A job of Slurm is known by the label `hpc_job` that the exporter has with `--hpc-job-mapping-dir`;
without it, by the node where it alone holds all GPUs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.queue.doctor.state import LiveCluster, LivePod
from ridgeline.records.input_file import csv_rows, read_text

SHARES = {"DCGM_FI_DEV_GPU_UTIL": 0.01, "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 1.0, "utilisation": 0.01}
"""Columns that tell it, with what makes a share of them."""
_METRIC = f"{' or '.join(SHARES)} (from 0 to 100, the second from 0 to 1)"
DCGM_CURE = f"give samples as CSV with the columns namespace, pod and {_METRIC}"
JOBS_CURE = f"give samples as CSV with the columns hpc_job, or Hostname, and {_METRIC}"
_PODS = (("namespace", "pod"), ("exported_namespace", "exported_pod"))
"""Columns that name a pod; Prometheus calls them so where it has labels of the same name."""
_JOBS = ("hpc_job", "job_id", "jobid", "slurm_job_id")
_HOSTS = ("Hostname", "hostname", "node", "instance")
_FEWEST = 2
Cells = dict[str, str]


def used_by_pod(path: Path, known: set[str]) -> dict[str, float]:
    """Mean utilisation of a pod's GPUs, from 0 to 1, by its name with its namespace.

    Raises:
        InputError: A column is missing, a sample is no share, or no pod of it is in the state.
    """

    def pods_of(head: list[str]) -> Callable[[Cells], list[str]] | None:
        columns = next((one for one in reversed(_PODS) if set(one) <= set(head)), None)
        if columns is None:
            return None
        space, pod = columns
        return lambda row: [f"{row[space]}/{row[pod]}"] if row.get(pod) else []

    samples = _samples(path, pods_of, DCGM_CURE)
    if samples and not samples.keys() & known:
        raise InputError(
            f"--dcgm {path}: none of its pods is in the state; {next(iter(samples))} is not"
        )
    return _means(samples)


def used_by_job(path: Path, state: LiveCluster) -> dict[str, float]:
    """Mean utilisation of a job's GPUs, from 0 to 1, by the name that it has on each of its nodes.

    Raises:
        InputError: A column is missing, a sample is no share, or no job of it is in the state.
    """
    of_job: dict[str, list[LivePod]] = defaultdict(list)
    for pod in state.running:
        of_job[pod.workload.removeprefix("job ").partition("_[")[0]].append(pod)
    alone = _alone(state)

    def jobs_of(head: list[str]) -> Callable[[Cells], list[str]] | None:
        job = next((one for one in _JOBS if one in head), "")
        host = next((one for one in _HOSTS if one in head), "")
        if not (job or host):
            return None

        def names(row: Cells) -> list[str]:
            where = row.get(host, "").partition(":")[0].partition(".")[0]
            if job:
                pods = of_job[row[job]] if row.get(job) else []
                return [pod.name for pod in pods if not where or pod.node == where]
            return alone.get(where, [])

        return names

    samples = _samples(path, jobs_of, JOBS_CURE)
    if not samples:
        raise InputError(f"--dcgm {path}: none of its samples is of a job in the state")
    return _means(samples)


def _alone(state: LiveCluster) -> dict[str, list[str]]:
    """The job that holds all GPUs of a node, by the node's name."""
    gpus = {node.name: node.num_gpus for node in state.nodes}
    on: dict[str, list[LivePod]] = defaultdict(list)
    for pod in state.running:
        if pod.num_gpus:
            on[pod.node].append(pod)
    return {node: [pods[0].name] for node, pods in on.items()
            if len(pods) == 1 and pods[0].num_gpus == gpus.get(node)}  # fmt: skip


def _samples(
    path: Path, named: Callable[[list[str]], Callable[[Cells], Iterable[str]] | None], cure: str
) -> dict[str, list[float]]:
    """Shares by what holds the GPU; rows of GPUs that nobody has are left out."""
    where = f"--dcgm {path}"
    rows = csv_rows(read_text(path, option="--dcgm", cure=cure), where=where, cure=cure)
    head = [one.strip() for one in next(rows, (0, []))[1]]
    column = next((one for one in SHARES if one in head), None)
    names_of = named(head)
    if column is None or names_of is None:
        raise InputError(f"{where}: lacks columns; {cure}")
    samples: dict[str, list[float]] = defaultdict(list)
    for line, cells in rows:
        row = dict(zip(head, (one.strip() for one in cells), strict=False))
        names = list(names_of(row))
        if not names or not row.get(column):
            continue
        try:
            share = float(row[column]) * SHARES[column]
        except ValueError:
            share = -1.0
        if not 0.0 <= share <= 1.0:
            raise InputError(f"{where}, line {line}: {column} is {row[column]!r}; {cure}")
        for name in names:
            samples[name].append(share)
    return samples


def _means(samples: dict[str, list[float]]) -> dict[str, float]:
    return {name: sum(seen) / len(seen) for name, seen in samples.items() if len(seen) >= _FEWEST}
