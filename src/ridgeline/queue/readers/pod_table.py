"""Pods and nodes as tables: for clusters that kubectl does not tell of."""

from __future__ import annotations

from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.queue.doctor.state import LiveCluster, LiveNode, LivePod
from ridgeline.queue.readers.openb import MEBIBYTE, read_nodes
from ridgeline.records.input_file import csv_rows, read_text

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
