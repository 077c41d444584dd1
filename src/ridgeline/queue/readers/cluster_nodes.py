"""A cluster to simulate, from a list of its nodes instead of a file written by hand.

    kubectl get nodes,clusterqueues,cohorts,resourceflavors,localqueues -A -o json > nodes.json
    sinfo -N -o "%N|%G|%T|%P" > sinfo.txt

The tables of nodes of public traces (CSV) are read too. Nodes without GPUs, and nodes that take no
jobs, are no part of it; alike ones stand together. What Kueue's objects say of queues is read with
them.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ridgeline.errors import InputError
from ridgeline.queue.cluster import (
    NodeGroup,
    QueuedCluster,
    check_queued_cluster,
    read_queued_cluster,
)
from ridgeline.queue.readers import slurm_json
from ridgeline.queue.readers.columns import ColumnNames, plain_name
from ridgeline.queue.readers.kube_shares import shares_of
from ridgeline.queue.readers.kubectl import KUBECTL_CURE, YAML_BEGINS, cluster_of, kube_objects
from ridgeline.queue.readers.slurm_nodes import open_nodes, prints_nodes
from ridgeline.records.input_file import csv_rows, read_text, read_toml

CLUSTER_CURE = (
    "give a cluster as TOML, or its nodes: kubectl get nodes -o json, sinfo -N, or openb's CSV"
)


@dataclass(frozen=True, slots=True)
class _Node:
    gpus: int
    gpu_type: str
    cpus: float | None = None
    memory_gibibytes: float | None = None


def read_cluster(path: Path) -> QueuedCluster:
    """Read a cluster file, or the nodes that a cluster prints.

    Raises:
        InputError: It is neither, or no node in it has a GPU that jobs may have.
    """
    text = read_text(path, option="--cluster", cure=CLUSTER_CURE)
    if slurm_json.BEGINS.match(text.lstrip("\ufeff")) or prints_nodes(text):
        nodes = (
            _Node(one.gpus, one.gpu_type, one.cpus, one.memory_gibibytes)
            for one in open_nodes(text, f"--cluster {path}")
        )
        return _grouped(nodes, path, CLUSTER_CURE)
    if path.suffix == ".json" or YAML_BEGINS.match(text.lstrip("\ufeff").lstrip()):
        return _of_kubectl(path)
    if path.suffix == ".csv" and is_spec(text):
        return QueuedCluster(nodes=[_of_spec(path)])
    if path.suffix == ".csv":
        listed = (
            _Node(
                one.num_gpus, one.model, one.cpus,
                None if one.memory_bytes is None else one.memory_bytes / 2**30,
            )
            for one in read_node_table(path)
        )  # fmt: skip
        return _grouped(listed, path, NODES_CURE)
    return read_queued_cluster(path, cure="" if path.suffix == ".toml" else CLUSTER_CURE)


def _of_kubectl(path: Path) -> QueuedCluster:
    where = f"--cluster {path}"
    objects = kube_objects(path)
    told = [one for one in objects if one["kind"] in ("Node", "ResourceSlice")]
    state = cluster_of(told, where=where)
    nodes = [node for node in state.nodes if not node.closed]
    counted = (
        _Node(node.num_gpus, node.model, node.cpu_milli / 1000, node.memory_bytes / 2**30)
        for node in nodes
    )
    cluster = _grouped(counted, path, KUBECTL_CURE)
    if not any(one["kind"] == "ClusterQueue" for one in objects):
        return cluster
    shares = shares_of(objects, nodes, where)
    cluster = msgspec.structs.replace(
        cluster, queues=shares.queues, cohorts=shares.cohorts, flavors=shares.flavors,
        local_queues=shares.local_queues, fair_sharing=shares.fair_sharing,
    )  # fmt: skip
    check_queued_cluster(cluster, where)
    return cluster


def _of_spec(path: Path) -> NodeGroup:
    found = read_spec(path)
    return NodeGroup(
        count=found.switches * found.nodes_of_switch,
        gpus=found.gpus,
        cpus=found.cpus,
        memory_gibibytes=found.memory_gibibytes,
        nodes_per_rack=found.nodes_of_switch,
    )


def _grouped(nodes: Iterable[_Node], path: Path, cure: str) -> QueuedCluster:
    """Nodes that are alike as one group each, in the order in which they first come."""
    counted = Counter(node for node in nodes if node.gpus)
    if not counted:
        raise InputError(f"--cluster {path}: no node with a GPU that takes jobs; {cure}")
    return QueuedCluster(
        nodes=[
            NodeGroup(
                count=count,
                gpus=node.gpus,
                gpu_type=node.gpu_type,
                cpus=node.cpus,
                memory_gibibytes=node.memory_gibibytes,
            )
            for node, count in counted.items()
        ]
    )


NODES_CURE = (
    "a table of nodes is CSV with the columns name, gpus and, if known, model, cpus, memory_gib"
    " (docs: queue-simulate)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedNode:
    """A node as a row of a table tells it."""

    num_gpus: int
    model: str
    cpus: float | None
    """Cores of the node; none: the table does not tell them."""
    memory_bytes: float | None


@functools.cache
def node_columns() -> dict[str, list[str]]:
    """Our names of columns, each with all that it is known by."""
    return read_toml(Path(__file__).with_name("node_columns.toml"), ColumnNames).columns


def read_node_table(path: Path) -> list[ListedNode]:
    """Every node of a table.

    Raises:
        InputError: A column is missing, a row is no node, or two have one name; which line.
    """
    where = f"--cluster {path}"
    text = read_text(path, option="--cluster", cure=NODES_CURE)
    rows = csv_rows(text.lstrip("\ufeff"), where=where, cure=NODES_CURE)
    head = [plain_name(one) for one in next(rows, (0, []))[1]]
    places = {
        ours: head.index(found)
        for ours, names in node_columns().items()
        if (found := next((name for name in names if name in head), None)) is not None
    }
    for needed in ("name", "gpus"):
        if needed not in places:
            raise InputError(f"{where}: no column {needed}; {NODES_CURE}")
    seen: dict[str, int] = {}
    nodes = []
    for line, cells in rows:
        at = f"{where}, line {line}"
        if len(cells) != len(head):
            raise InputError(f"{at}: {len(cells)} cells under {len(head)} columns")
        row = {name: cells[place].strip() for name, place in places.items()}
        if row["name"] in seen:
            raise InputError(
                f"{at}: node {row['name']!r} stands in line {seen[row['name']]} already; give it"
                " another name"
            )
        seen[row["name"]] = line
        nodes.append(_node(row, at))
    return nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """A cluster of alike nodes under switches, as simulators after Tiresias' write it."""

    switches: int
    nodes_of_switch: int
    gpus: int
    cpus: float | None
    memory_gibibytes: float | None


_SPEC = ("num_switch", "num_node_p_switch", "num_gpu_p_node")


def is_spec(text: str) -> bool:
    """Whether a table is one line on all nodes: so many under each switch, alike."""
    head = text.lstrip("\ufeff").partition("\n")[0].split(",")
    return set(_SPEC) <= {plain_name(one) for one in head}


def read_spec(path: Path) -> ClusterSpec:
    """The one line of such a table.

    Raises:
        InputError: There is another number of lines, or a number makes no sense.
    """
    where = f"--cluster {path}"
    rows = list(csv_rows(read_text(path, option="--cluster", cure=NODES_CURE), where=where))
    if len(rows) != 2 or len(rows[0][1]) != len(rows[1][1]):
        raise InputError(f"{where}: give one line of numbers under {', '.join(_SPEC)}")
    head = [plain_name(one.lstrip("\ufeff")) for one in rows[0][1]]
    row = dict(zip(head, (one.strip() for one in rows[1][1]), strict=True))
    at = f"{where}, line {rows[1][0]}"
    counts = [_amount(row, name, at) or 0.0 for name in _SPEC]
    for name, count in zip(_SPEC, counts, strict=True):
        if count != int(count) or not count:
            raise InputError(f"{at}: {name} is {row[name]!r}; give a whole number above 0")
    switches, nodes, gpus = (int(one) for one in counts)
    return ClusterSpec(
        switches=switches, nodes_of_switch=nodes, gpus=gpus,
        cpus=_amount(row, "num_cpu_p_node", at), memory_gibibytes=_amount(row, "mem_p_node", at),
    )  # fmt: skip


def _node(row: dict[str, str], where: str) -> ListedNode:
    gpus = _amount(row, "gpus", where) or 0.0
    if gpus != int(gpus):
        raise InputError(f"{where}: gpus is {row['gpus']!r}; give a whole number")
    milli, cores = _amount(row, "cpu_milli", where), _amount(row, "cpus", where)
    mebi, gibi = _amount(row, "memory_mib", where), _amount(row, "memory_gib", where)
    return ListedNode(
        num_gpus=int(gpus),
        model=row.get("model", ""),
        cpus=cores if milli is None else milli / 1000.0,
        memory_bytes=mebi * 2.0**20 if mebi is not None else gibi and gibi * 2.0**30,
    )


def _amount(row: dict[str, str], column: str, where: str) -> float | None:
    """A number of 0 or more; none where there is no such column, or nothing in it."""
    text = row.get(column, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < 2**40:
        raise InputError(f"{where}: {column} is {text!r}; give a number, 0 or more")
    return value
