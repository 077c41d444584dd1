"""Nodes as CSV, in the columns of public traces (`node_columns.toml`)."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.queue.readers.columns import ColumnNames, plain_name
from ridgeline.records.input_file import csv_rows, read_text, read_toml

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
