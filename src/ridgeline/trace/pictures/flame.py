"""Nesting as a flame graph: frames, operators and calls inside each other, with host and GPU time.

Host events of a thread are nested by time; equal names under the same parent are one node. GPU
time goes to the node of the call that launched it, and counts for all that are around it.

    flame_graph(trace)      the tree
    folded(trace)           `outer;inner count` lines, as flamegraph.pl and speedscope read them
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from ridgeline.trace.columns import ABSENT, Trace
from ridgeline.trace.host_calls import launch_rows, rows_by_start
from ridgeline.trace.sorting import distinct

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
        self.host: list[float] = []
        self.own: list[float] = []
        self.gpu: list[float] = []
        self.calls: list[int] = []
        self.known: dict[tuple[int, int], int] = {}
        node_of_row = np.full(len(trace.host), ABSENT, np.int64)
        for thread in distinct(trace.host.thread).tolist():
            self._thread(thread, node_of_row)
        self._gpu_times(node_of_row)

    def _node(self, parent: int, key: int, label: str) -> int:
        found = self.known.get((parent, key))
        if found is None:
            found = self.known[parent, key] = len(self.parent)
            self.parent.append(parent)
            self.label.append(label)
            self.host.append(0.0)
            self.own.append(0.0)
            self.gpu.append(0.0)
            self.calls.append(0)
        return found

    def _thread(self, thread: int, node_of_row: np.ndarray) -> None:
        host, names = self.trace.host, self.trace.names
        rows = rows_by_start(self.trace, thread)
        called = self.trace.thread_names.get(thread, "thread")
        root = self._node(ABSENT, -2 - thread, f"{called} {self.trace.threads[thread][1]}")
        stack: list[tuple[float, int]] = []
        columns = (rows, host.start_us[rows], host.duration_us[rows], host.name[rows])
        for row, start, duration, name in _in_blocks(*columns):
            while stack and stack[-1][0] <= start:
                stack.pop()
            parent = stack[-1][1] if stack else root
            end = min(start + duration, stack[-1][0]) if stack else start + duration
            if len(stack) >= DEEPEST:
                node_of_row[row] = parent
                continue
            node = self._node(parent, name, names[name])
            self.host[node] += end - start
            self.own[node] += end - start
            self.own[parent] -= end - start if stack else 0.0
            self.host[root] += end - start if not stack else 0.0
            self.calls[node] += 1
            node_of_row[row] = node
            stack.append((end, node))

    def _gpu_times(self, node_of_row: np.ndarray) -> None:
        rows = launch_rows(self.trace)
        launched = np.flatnonzero(rows != ABSENT)
        nodes, us = node_of_row[rows[launched]], self.trace.gpu.duration_us[launched]
        inside = nodes != ABSENT
        self.gpu = np.bincount(nodes[inside], us[inside], len(self.parent)).tolist()
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
                name=self.label[node], host_us=self.host[node], own_us=max(0.0, self.own[node]),
                gpu_us=self.gpu[node], calls=self.calls[node], children=inside,
            )  # fmt: skip
            children.setdefault(self.parent[node], []).append(made)
        return sorted(children.get(ABSENT, []), key=_width)


def _in_blocks(*columns: np.ndarray[Any, Any]) -> Iterator[tuple[Any, ...]]:
    """The rows of columns as Python's numbers, which take four times the room: block by block."""
    for start in range(0, len(columns[0]), _BLOCK):
        yield from zip(*(column[start : start + _BLOCK].tolist() for column in columns),
                       strict=True)  # fmt: skip


def _width(node: FlameNode) -> tuple[float, str]:
    return (-max(node.host_us, node.gpu_us), node.name)
