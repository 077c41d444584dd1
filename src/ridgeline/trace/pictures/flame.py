"""Nesting as a flame graph: frames, operators and calls inside each other, with host and GPU time.

Host events of a thread are nested by time; equal names under the same parent are one node. GPU
time goes to the node of the call that launched it, and counts for all that are around it.

    flame_graph(trace)      the tree
    tree_rows(rank_tree)    a row per node, each after the one around it
    folded(trace)           `outer;inner count` lines, as flamegraph.pl and speedscope read them
"""

from __future__ import annotations

import msgspec
import numpy as np

from ridgeline.trace.columns import ABSENT, Ints, Mask, Trace
from ridgeline.trace.host_calls import launch_rows, rows_by_start
from ridgeline.trace.nesting import Paths, depths, merged_paths, within
from ridgeline.trace.sorting import distinct
from ridgeline.trace.windows import RankRecord

DEEPEST = 200
_BLOCK = 1 << 16
"""Events that are nested at a time, with those that are still open: they stay in the caches."""


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


def flame_graph(
    trace: Trace, *, narrowest: float = 0.0, deepest: int = DEEPEST + 1
) -> list[FlameNode]:
    """One root per thread, widest first.

    Branches are left out that are deeper, or in both host and GPU time narrower than a share of the
    widest root.
    """
    return _Nodes(trace).built(narrowest, deepest)


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


def _plain(name: str) -> str:
    return name.replace(";", ",").replace("\n", " ")


class _Nodes:
    """Aggregated nodes as columns: parent, name, times; a node is after the one around it."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.parents: list[int] = []
        self.label: list[str] = []
        self.node_of_row = np.full(len(trace.host), ABSENT, np.int64)
        self.length_of_row = np.full(len(trace.host), np.nan)
        for thread in distinct(trace.host.thread).tolist():
            self._thread(thread)
        self.parent = np.array(self.parents, np.int64)
        self._times()
        self._gpu_times()

    def _made(self, parent: int, label: str) -> int:
        self.parents.append(parent)
        self.label.append(label)
        return len(self.parents) - 1

    def _thread(self, thread: int) -> None:
        """Make the nodes of a thread; find the one of each of its events, and its length there."""
        host, every = self.trace.host, rows_by_start(self.trace, thread)
        called = self.trace.thread_names.get(thread, "thread")
        root = self._made(ABSENT, f"{called} {self.trace.threads[thread][1]}")
        known: dict[tuple[int, int], int] = {}
        before, before_ends = every[:0], np.zeros(0)
        for first in range(0, len(every), _BLOCK):
            rows = np.concatenate((before, every[first : first + _BLOCK]))
            starts = host.start_us[rows]
            around, ends = within(
                starts, np.concatenate((before_ends, host.ends_of(rows[len(before) :])))
            )
            nodes, shallow = self._nodes_of(rows, around, root, known)
            self.node_of_row[rows] = nodes
            self.length_of_row[rows[shallow]] = (ends - starts)[shallow]
            opened = _open_at_end(around)
            before, before_ends = rows[opened], ends[opened]

    def _nodes_of(
        self, rows: Ints, around: Ints, root: int, known: dict[tuple[int, int], int]
    ) -> tuple[Ints, Mask]:
        """The node of each row, and which are not too deep to have one of their own."""
        level = depths(around)
        shallow = level < DEEPEST
        kept, place_of = np.flatnonzero(shallow), np.cumsum(shallow) - 1
        inner = around[kept]
        around = np.where(inner == ABSENT, ABSENT, place_of[inner])
        paths = merged_paths(around, self.trace.host.name[rows[kept]].astype(np.int64))
        number = [root] * (len(paths.name) + 1)  # the last is what is around none
        parent, name = paths.parent.tolist(), paths.name.tolist()
        for path in _by_appearance(paths):
            key = number[parent[path]], name[path]
            if key not in known:
                known[key] = self._made(key[0], self.trace.names[key[1]])
            number[path] = known[key]
        found = np.full(len(rows), ABSENT, np.int64)
        found[kept] = np.array(number, np.int64)[paths.node]
        if not shallow.all():
            last = np.maximum.accumulate(np.where(level == DEEPEST - 1, np.arange(len(rows)), 0))
            found[~shallow] = found[last[~shallow]]
        return found, shallow

    def _times(self) -> None:
        """A root is as long as what it holds; elsewhere own time is what is left of it."""
        counted = ~np.isnan(self.length_of_row)
        nodes, lengths = self.node_of_row[counted], self.length_of_row[counted]
        parent = self.parent
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
        parent = self.parent.tolist()
        for node in range(len(parent) - 1, -1, -1):
            if parent[node] != ABSENT:
                self.gpu[parent[node]] += self.gpu[node]

    def built(self, narrowest: float, deepest: int) -> list[FlameNode]:
        """Build the tree from the last node on: a child is always made after its parent."""
        width = np.maximum(self.host, self.gpu)
        roots = self.parent == ABSENT
        kept = width >= narrowest * width[roots].max(initial=0.0)
        kept &= depths(self.parent) < deepest
        parent = self.parent.tolist()
        children: dict[int, list[FlameNode]] = {}
        for node in reversed(_with_all_around(kept, parent)):
            inside = sorted(children.pop(node, []), key=_width)
            made = FlameNode(
                name=self.label[node], host_us=float(self.host[node]),
                own_us=float(self.own[node]), gpu_us=self.gpu[node],
                calls=int(self.calls[node]), children=inside,
            )  # fmt: skip
            children.setdefault(parent[node], []).append(made)
        return sorted(children.get(ABSENT, []), key=_width)


def _by_appearance(paths: Paths) -> list[int]:
    """The nodes in the order of their first spans: each after the one around it."""
    first = np.empty(len(paths.name), np.int64)
    first[paths.node[::-1]] = np.arange(len(paths.node))[::-1]
    order: list[int] = np.argsort(first).tolist()
    return order


def _open_at_end(around: Ints) -> list[int]:
    """The places of the last span and of all that are around it, outermost first."""
    found: list[int] = []
    place = len(around) - 1
    while place != ABSENT:
        found.append(place)
        place = int(around[place])
    return found[::-1]


def _with_all_around(kept: Mask, parent: list[int]) -> list[int]:
    """The nodes of a mask of which all that are around are in it too."""
    found: dict[int, None] = {}
    for node in np.flatnonzero(kept).tolist():
        if parent[node] == ABSENT or parent[node] in found:
            found[node] = None
    return list(found)


def _width(node: FlameNode) -> tuple[float, str]:
    return (-max(node.host_us, node.gpu_us), node.name)
