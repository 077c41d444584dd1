"""Which forward operator each piece of backward work belongs to, by autograd's sequence numbers.

torch numbers the nodes that forward operators add to the graph, and writes the number beside the
forward operator and beside the evaluation of the node. Operators that add no node carry the number
that comes next, so the last forward operator with a number, before the evaluation, made the node
(torch.autograd.profiler.emit_nvtx says so). Numbers are counted per thread: where two threads run
forward work, the one that began last is taken.
"""

from __future__ import annotations

import re

import numpy as np

from ridgeline.trace.columns import ABSENT, Category, Floats, Ints, Mask, Trace
from ridgeline.trace.host_calls import innermost_at, names_matching

_NODE = re.compile(r"^autograd::engine::evaluate_function|Backward\d*$")


def in_backward(trace: Trace) -> Mask:
    """Which host events are evaluations of a node of autograd's graph."""
    host = trace.host
    found: Mask = names_matching(trace, _NODE)[host.name] & (host.category == Category.OPERATOR)
    return found


def forward_of(trace: Trace, threads: Ints, moments_us: Floats) -> Ints:
    """Row of the forward operator behind what runs on a thread at a moment; ABSENT where unknown.

    It is unknown outside of backward work, and without sequence numbers.
    """
    host = trace.host
    nodes = in_backward(trace) & (host.sequence >= 0)
    found = np.full(len(moments_us), ABSENT, np.int64)
    if not nodes.any() or not len(moments_us):
        return found
    inside = innermost_at(trace, threads, moments_us, nodes)
    known = inside != ABSENT
    found[known] = _makers(trace, inside[known])
    return found


def _makers(trace: Trace, nodes: Ints) -> Ints:
    """The last forward operator with the number of each node that began before it."""
    host = trace.host
    forward = np.flatnonzero(
        (host.sequence >= 0) & (host.category == Category.OPERATOR) & ~in_backward(trace)
    )
    rows = np.concatenate([forward, nodes])
    asks = np.arange(len(rows)) >= len(forward)
    order = np.lexsort((asks, host.start_us[rows], host.sequence[rows]))
    places = np.arange(len(rows))
    last = np.maximum.accumulate(np.where(asks[order], -1, places))
    asked = np.flatnonzero(asks[order])
    maker = last[asked]
    sequence = host.sequence[rows[order]]
    same = (maker >= 0) & (sequence[maker] == sequence[asked])
    found = np.full(len(nodes), ABSENT, np.int64)
    found[order[asked] - len(forward)] = np.where(same, rows[order[maker]], ABSENT)
    return found
