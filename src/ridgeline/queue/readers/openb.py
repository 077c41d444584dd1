"""Alibaba's openb traces, nodes and tasks as CSV (clusterdata, cluster-trace-gpu-v2023)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.queue.placement.nodes import WHOLE, PlacedNode, PlacedTasks, TaskKind, tasks_of
from ridgeline.records.input_file import csv_rows, read_text

MEBIBYTE = 2**20
NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu")
TASK_COLUMNS = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
NODES_CURE = "a cluster is CSV with the columns sn, cpu_milli, memory_mib, gpu and, if any, model"
TASKS_CURE = (
    "tasks are CSV with the columns cpu_milli, memory_mib, num_gpu, gpu_milli (and gpu_spec)"
)


def lists_nodes(path: Path) -> bool:
    """Whether a file is a table of nodes in openb's columns."""
    head = read_text(path, option="--cluster", cure=NODES_CURE).partition("\n")[0]
    return "sn" in _names(head) or "cpu_milli" in _names(head)


def lists_tasks(path: Path) -> bool:
    """Whether a file is a table of tasks in openb's columns."""
    return "gpu_milli" in _names(read_text(path, cure=TASKS_CURE).partition("\n")[0])


def _names(head: str) -> list[str]:
    return [one.strip().lstrip("\ufeff") for one in head.split(",")]


def read_nodes(path: Path) -> list[PlacedNode]:
    """Nodes with their CPU, memory and GPUs.

    Raises:
        InputError: A column is missing, a row is no node, or two have one name; which line.
    """
    nodes: dict[str, PlacedNode] = {}
    for line, row in _rows(path, NODE_COLUMNS, NODES_CURE, "--cluster"):
        where = f"--cluster {path}, line {line}"
        name = row["sn"]
        if name in nodes:
            raise InputError(f"{where}: node {name!r} stands above already; give it another name")
        numbers = [_whole(row, column, where) for column in NODE_COLUMNS[1:]]
        nodes[name] = PlacedNode(
            name=name, cpu_milli=numbers[0], memory_bytes=numbers[1] * MEBIBYTE,
            num_gpus=numbers[2], model=row.get("model", ""),
        )  # fmt: skip
    if not any(node.num_gpus for node in nodes.values()):
        raise InputError(f"--cluster {path}: no node with a GPU; {NODES_CURE}")
    return list(nodes.values())


def read_tasks(path: Path) -> PlacedTasks:
    """Tasks with what they ask of one node.

    Raises:
        InputError: A column is missing, or a row is no task; which line.
    """
    asked = []
    for line, row in _rows(path, TASK_COLUMNS, TASKS_CURE, ""):
        where = f"{path}, line {line}"
        cpu, memory, count, milli = (_whole(row, column, where) for column in TASK_COLUMNS)
        if count > 1 and milli != WHOLE:
            raise InputError(f"{where}: {count} GPUs of {milli} thousandths; several are whole")
        if milli > WHOLE or (count and not milli):
            raise InputError(f"{where}: gpu_milli is {milli}; give 1 to {WHOLE} of each GPU")
        models = tuple(one for one in row.get("gpu_spec", "").split("|") if one)
        asked.append(
            TaskKind(cpu, milli if count else 0, count, memory * MEBIBYTE, models if count else ())
        )
    if not any(kind.num_gpus for kind in asked):
        raise InputError(f"{path}: no task with a GPU; {TASKS_CURE}")
    return tasks_of(asked)


def _rows(
    path: Path, needed: Sequence[str], cure: str, option: str
) -> list[tuple[int, dict[str, str]]]:
    where = f"{option} {path}".strip()
    rows = csv_rows(read_text(path, option=option, cure=cure), where=where, cure=cure)
    head = [one.strip().lstrip("\ufeff") for one in next(rows, (0, []))[1]]
    for name in needed:
        if name not in head:
            raise InputError(f"{where}: no column {name}; {cure}")
    found = []
    for line, cells in rows:
        if len(cells) != len(head):
            raise InputError(f"{where}, line {line}: {len(cells)} cells under {len(head)} columns")
        found.append((line, dict(zip(head, (one.strip() for one in cells), strict=True))))
    return found


def _whole(row: dict[str, str], column: str, where: str) -> int:
    text = row[column] or "0"
    if not text.isdigit() or int(text) > 2**40:
        raise InputError(f"{where}: {column} is {text!r}; give a whole number, 0 or more")
    return int(text)
