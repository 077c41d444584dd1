"""What collectives move: bytes that each rank sends, and the least time that takes.

    all-gather, reduce-scatter, all-to-all   (n - 1)/n · S
    all-reduce                             2 (n - 1)/n · S        (a reduce-scatter, an all-gather)

of a full buffer of S bytes over n ranks: no algorithm sends less (Patarasuk and Yuan, "Bandwidth
optimal all-reduce algorithms for clusters of workstations", J. Parallel Distrib. Comput. 69(2),
2009, theorem 1), and the ring sends no more. A ring takes n - 1 steps per half, a tree
2 ⌈log2 n⌉; a two-level scheme reduces inside each fast domain first, so that 1/d of the buffer
crosses the network on each of a domain's d ranks (Thakur et al. 2005; Mikami et al., 1811.05233).
Efficiencies of real fabrics are the caller's: see `collectives.py` for the calibrated model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Fast domains joined by a network. Rates are per rank and direction, as reached."""

    domain_size: int
    domain_bytes_per_second: float
    network_bytes_per_second: float
    domain_latency_seconds: float = 0.0
    """Of one step of a collective."""
    network_latency_seconds: float = 0.0


def all_gather_bytes(num_ranks: int, buffer_bytes: float) -> float:
    """Sent by each rank in an all-gather, a reduce-scatter or an all-to-all.

    >>> all_gather_bytes(8, 8e9)
    7000000000.0
    """
    _check(num_ranks)
    return (num_ranks - 1) / num_ranks * buffer_bytes


def all_reduce_bytes(num_ranks: int, buffer_bytes: float) -> float:
    """Sent by each rank so that all have the sum.

    >>> all_reduce_bytes(8, 14e9)
    24500000000.0
    """
    return 2.0 * all_gather_bytes(num_ranks, buffer_bytes)


def ring_all_reduce_seconds(
    num_ranks: int, buffer_bytes: float, bytes_per_second: float, latency_seconds: float = 0.0
) -> float:
    """Time of a ring all-reduce.

    >>> ring_all_reduce_seconds(4, 1e9, 1.5e9), ring_all_reduce_seconds(4, 0.0, 1e9, 1e-6)
    (1.0, 6e-06)
    """
    moved = all_reduce_bytes(num_ranks, buffer_bytes) / bytes_per_second
    return moved + 2.0 * (num_ranks - 1) * latency_seconds


def all_reduce_seconds(num_ranks: int, buffer_bytes: float, fabric: Fabric) -> float:
    """Time of an all-reduce, on two levels where it spans domains.

    Across domains the better of ring and tree, as NCCL chooses.

    >>> fabric = Fabric(
    ...     domain_size=8, domain_bytes_per_second=400e9, network_bytes_per_second=50e9
    ... )
    >>> all_reduce_seconds(8, 16e9, fabric), round(all_reduce_seconds(16, 16e9, fabric), 6)
    (0.07, 0.11)
    """
    inside = min(num_ranks, fabric.domain_size)
    nodes = math.ceil(num_ranks / fabric.domain_size)
    local = ring_all_reduce_seconds(
        inside, buffer_bytes, fabric.domain_bytes_per_second, fabric.domain_latency_seconds
    )
    if nodes == 1:
        return local
    moved = all_reduce_bytes(nodes, buffer_bytes / inside) / fabric.network_bytes_per_second
    steps = min(2 * (nodes - 1), 2 * math.ceil(math.log2(nodes)))
    return local + moved + steps * fabric.network_latency_seconds


def _check(num_ranks: int) -> None:
    if num_ranks < 1:
        raise ValueError(f"a collective has at least one rank, not {num_ranks}")
