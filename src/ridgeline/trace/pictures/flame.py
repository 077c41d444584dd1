"""Nesting as a flame graph: frames, operators and calls inside each other, with host and GPU time.

Host events of a thread are nested by time; equal names under the same parent are one node. GPU
time goes to the node of the call that launched it, and counts for all that are around it.

    flame_graph(trace)      the tree
    tree_rows(rank_tree)    a row per node, each after the one around it
    folded(trace)           `outer;inner count` lines, as flamegraph.pl and speedscope read them
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from ridgeline.trace.columns import ABSENT, Ints, Trace
from ridgeline.trace.host_calls import launch_rows, rows_by_start
from ridgeline.trace.sorting import distinct
from ridgeline.trace.windows import RankRecord

DEEPEST = 200
_BLOCK = 1 << 15


class FlameNode(msgspec.Struct, frozen=True, kw_only=True):
    """A name in a place."""

    name: str
    host_us: float
    """Host time with everything inside."""
    own_us: float
    """Host time without what is inside."""
    gpu_us: float
    """GPU time that was launched in it, in any depth."""
    calls: int
    children: list[FlameNode]
    """What is inside, widest first."""


def flame_graph(trace: Trace) -> list[FlameNode]:
    """One root per thread, widest first."""
    nodes = _Nodes(trace)
    return nodes.built()


class TreeRow(RankRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node of the tree as a row of a table."""

    path: str
    """The names around it and its own, outermost first, with `;` between."""
    depth: int
    """How many names are around it."""
    name: str
    host_us: float
    """Host time with everything inside."""
    own_us: float
    """Host time without what is inside."""
    gpu_us: float
    """GPU time that was launched in it, in any depth."""
    calls: int


class RankTree(RankRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tree of one rank."""

    roots: list[FlameNode]


def rank_tree(trace: Trace) -> RankTree:
    """The tree, and whose it is."""
    return RankTree(file=trace.file, rank=trace.rank, roots=flame_graph(trace))


def tree_rows(tree: RankTree) -> list[TreeRow]:
    """Every node as a row, each after the one around it, the widest of one place first."""
    rows: list[TreeRow] = []
    waiting = [(node, "", 0) for node in reversed(tree.roots)]
    while waiting:
        node, around, depth = waiting.pop()
        path = f"{around};{_plain(node.name)}" if depth else _plain(node.name)
        rows.append(
            TreeRow(
                file=tree.file, rank=tree.rank, path=path, depth=depth, name=node.name,
                host_us=node.host_us, own_us=node.own_us, gpu_us=node.gpu_us, calls=node.calls,
            )
        )  # fmt: skip
        waiting += [(child, path, depth + 1) for child in reversed(node.children)]
    return rows


def folded(trace: Trace, *, gpu: bool = False) -> list[str]:
    """Own time in whole microseconds per stack; with `gpu`, the GPU time launched there."""
    lines: list[str] = []

    def add(node: FlameNode, path: str) -> None:
        here = f"{path};{_plain(node.name)}" if path else _plain(node.name)
        inside = sum(child.gpu_us for child in node.children)
        value = round(node.gpu_us - inside if gpu else node.own_us)
        if value > 0:
            lines.append(f"{here} {value}")
        for child in node.children:
            add(child, here)

    for root in flame_graph(trace):
        add(root, "")
    return lines


def pruned(roots: Sequence[FlameNode], least_us: float, deepest: int) -> list[FlameNode]:
    """Without branches narrower than `least_us` in both host and GPU time, and no deeper."""
    if deepest <= 0:
        return []
    return [
        msgspec.structs.replace(node, children=pruned(node.children, least_us, deepest - 1))
        for node in roots
        if max(node.host_us, node.gpu_us) >= least_us
    ]


def _plain(name: str) -> str:
    return name.replace(";", ",").replace("\n", " ")


class _Nodes:
    """Aggregated nodes as columns: parent, name, times."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.parent: list[int] = []
        self.label: list[str] = []
        self.node_of_row = np.full(len(trace.host), ABSENT, np.int64)
        self.length_of_row = np.full(len(trace.host), np.nan)
        for thread in distinct(trace.host.thread).tolist():
            self._thread(thread)
        self._times()
        self._gpu_times()

    def _made(self, parent: int, label: str) -> int:
        self.parent.append(parent)
        self.label.append(label)
        return len(self.parent) - 1

    def _thread(self, thread: int) -> None:
        """Make the nodes of a thread; find the one of each of its events, and its length there."""
        host, names = self.trace.host, self.trace.names
        called = self.trace.thread_names.get(thread, "thread")
        root = self._made(ABSENT, f"{called} {self.trace.threads[thread][1]}")
        # What is open around an event: its end, its node, and the nodes inside of it by name.
        inside: dict[int, dict[int, int]] = {root: {}}
        end_around, around, known = np.inf, root, inside[root]
        opened: list[tuple[float, int, dict[int, int]]] = []
        for rows in _blocks(rows_by_start(self.trace, thread)):
            found: list[int] = []
            lengths: list[float] = []
            start_us = host.start_us[rows]
            columns = (start_us, start_us + host.duration_us[rows], host.name[rows])
            for start, end, name in zip(*(column.tolist() for column in columns), strict=True):
                while end_around <= start:
                    end_around, around, known = opened.pop()
                if len(opened) >= DEEPEST:
                    found.append(around)
                    lengths.append(np.nan)
                    continue
                opened.append((end_around, around, known))
                node = known.get(name)
                if node is None:
                    node = known[name] = self._made(around, names[name])
                    inside[node] = {}
                if end < end_around:  # noqa: PLR1730 - a call for each event takes a tenth longer
                    end_around = end
                around, known = node, inside[node]
                found.append(node)
                lengths.append(end_around - start)
            self.node_of_row[rows] = found
            self.length_of_row[rows] = lengths

    def _times(self) -> None:
        """A root is as long as what it holds; elsewhere own time is what is left of it."""
        counted = ~np.isnan(self.length_of_row)
        nodes, lengths = self.node_of_row[counted], self.length_of_row[counted]
        parent = np.array(self.parent, np.int64)
        inner = parent != ABSENT
        self.calls = np.bincount(nodes, minlength=len(parent))
        self.host = np.bincount(nodes, lengths, len(parent))
        inside = np.bincount(parent[inner], self.host[inner], len(parent))
        self.host = np.where(inner, self.host, inside)
        self.own = np.maximum(self.host - inside, 0.0)

    def _gpu_times(self) -> None:
        rows = launch_rows(self.trace)
        launched = np.flatnonzero(rows != ABSENT)
        nodes, us = self.node_of_row[rows[launched]], self.trace.gpu.duration_us[launched]
        inside = nodes != ABSENT
        self.gpu: list[float] = np.bincount(nodes[inside], us[inside], len(self.parent)).tolist()
        # A child is always made after its parent.
        for node in range(len(self.parent) - 1, -1, -1):
            if self.parent[node] != ABSENT:
                self.gpu[self.parent[node]] += self.gpu[node]

    def built(self) -> list[FlameNode]:
        """Build the tree from the last node on: a child is always made after its parent."""
        children: dict[int, list[FlameNode]] = {}
        for node in range(len(self.parent) - 1, -1, -1):
            inside = sorted(children.pop(node, []), key=_width)
            made = FlameNode(
                name=self.label[node], host_us=float(self.host[node]),
                own_us=float(self.own[node]), gpu_us=self.gpu[node],
                calls=int(self.calls[node]), children=inside,
            )  # fmt: skip
            children.setdefault(self.parent[node], []).append(made)
        return sorted(children.get(ABSENT, []), key=_width)


def _blocks(rows: Ints) -> Iterator[Ints]:
    """Cut rows into parts, for as numbers of Python they take four times the room."""
    for first in range(0, len(rows), _BLOCK):
        yield rows[first : first + _BLOCK]


def _width(node: FlameNode) -> tuple[float, str]:
    return (-max(node.host_us, node.gpu_us), node.name)
