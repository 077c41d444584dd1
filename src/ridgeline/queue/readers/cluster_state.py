"""A cluster's state from files: what kubectl or Slurm prints, or tables of pods and nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.queue.doctor.state import LiveCluster, LiveNode, LivePod
from ridgeline.queue.readers.dcgm import used_by_job, used_by_pod
from ridgeline.queue.readers.kubectl import KUBECTL_CURE, cluster_of, kube_objects
from ridgeline.queue.readers.openb import MEBIBYTE, read_nodes
from ridgeline.queue.readers.slurm_printed import is_slurm
from ridgeline.queue.readers.slurm_state import read_slurm_state
from ridgeline.records.input_file import csv_rows, read_text, without_collection


def read_cluster_state(
    paths: Sequence[Path], *, nodes: Path | None = None, dcgm: Path | None = None
) -> LiveCluster:
    """Read the state of one cluster.

    Args:
        paths: Files of `kubectl get ... -o json`, of sinfo, squeue and sacct, or one table of pods
            (CSV).
        nodes: The table of nodes that belongs to a table of pods.
        dcgm: Utilisation of GPUs by pod or job, as DCGM's exporter gives it, in CSV.

    Raises:
        InputError: A file is neither, or says what cannot be; which, and where in it.
    """
    tables = [path for path in paths if path.suffix == ".csv"]
    if tables:
        if len(paths) > 1:
            raise InputError(f"{tables[0]}: give one table of pods, or files of kubectl alone")
        if nodes is None:
            raise InputError(f"{tables[0]}: a table of pods needs its nodes: --cluster NODES.csv")
        state = read_pod_table(tables[0], nodes)
    elif nodes is not None:
        raise InputError(
            f"--cluster {nodes}: only for a table of pods; kubectl and sinfo tell the nodes"
        )
    elif any(is_slurm(read_text(path, cure=KUBECTL_CURE)) for path in paths):
        state = read_slurm_state(paths)
        used = {} if dcgm is None else used_by_job(dcgm, state)
        return replace(state, used_share=used)
    else:
        with without_collection():
            found = [one for path in paths for one in kube_objects(path)]
            state = cluster_of(found, where=", ".join(str(path) for path in paths))
    if not any(node.num_gpus or node.slices for node in state.nodes):
        raise InputError(f"{paths[0]}: no node with a GPU; {KUBECTL_CURE}")
    if dcgm is None:
        return state
    return replace(state, used_share=used_by_pod(dcgm, {pod.name for pod in state.pods}))


NEEDED = ("pod", "gpus", "node")
PODS_CURE = (
    "pods are CSV with the columns pod, gpus, node (empty: it waits) and, if known, cpu_milli,"
    " memory_mib, job (its ranks compute together), gang (yes: they start together), queue (whose"
    " quota admitted it), created and started (in seconds)"
)
_NUMBERS = ("gpus", "cpu_milli", "memory_mib")


def read_pod_table(path: Path, nodes: Path) -> LiveCluster:
    """A cluster from a table of pods and one of nodes (the columns of `queue place`).

    Raises:
        InputError: A column is missing, or a row is no pod; which line.
    """
    live = tuple(
        LiveNode(
            name=node.name, num_gpus=node.num_gpus, cpu_milli=node.cpu_milli,
            memory_bytes=node.memory_bytes, model=node.model,
        )
        for node in read_nodes(nodes)
    )  # fmt: skip
    rows = csv_rows(read_text(path, cure=PODS_CURE), where=str(path), cure=PODS_CURE)
    head = [one.strip().lstrip("\ufeff") for one in next(rows, (0, []))[1]]
    for column in NEEDED:
        if column not in head:
            raise InputError(f"{path}: no column {column}; {PODS_CURE}")
    known, pods = {node.name for node in live}, {}
    for line, cells in rows:
        where = f"{path}, line {line}"
        if len(cells) != len(head):
            raise InputError(f"{where}: {len(cells)} cells under {len(head)} columns")
        row = dict(zip(head, (one.strip() for one in cells), strict=True))
        if row["pod"] in pods:
            raise InputError(f"{where}: pod {row['pod']!r} stands above already; name it otherwise")
        if row["node"] and row["node"] not in known:
            raise InputError(f"{where}: node {row['node']!r} is not in {nodes}")
        pods[row["pod"]] = _pod(row, where)
    times = [at for pod in pods.values() for at in (pod.created_seconds, pod.started_seconds)]
    return LiveCluster(
        nodes=live,
        pods=tuple(pods.values()),
        now_seconds=max((at for at in times if at is not None), default=None),
    )


def _pod(row: dict[str, str], where: str) -> LivePod:
    gpus, cpu, memory = (_whole(row.get(column, ""), column, where) for column in _NUMBERS)
    job = row.get("job", "")
    return LivePod(
        name=row["pod"],
        workload=f"job {job}" if job else f"pod {row['pod']}",
        ranks=bool(job),
        node=row["node"],
        num_gpus=gpus,
        cpu_milli=cpu,
        memory_bytes=memory * MEBIBYTE,
        gang=row.get("gang", "").lower() in ("yes", "true", "1"),
        quota=row.get("queue", ""),
        created_seconds=_moment(row.get("created", ""), "created", where),
        started_seconds=_moment(row.get("started", ""), "started", where),
    )


def _whole(text: str, column: str, where: str) -> int:
    if not (text or "0").isdigit() or int(text or "0") > 2**40:
        raise InputError(f"{where}: {column} is {text!r}; give a whole number, 0 or more")
    return int(text or "0")


def _moment(text: str, column: str, where: str) -> float | None:
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{where}: {column} is {text!r}; give seconds") from None
