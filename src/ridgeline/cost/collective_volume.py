"""The bytes that collectives move, and the least time that takes.

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
    """The latency of one step of a collective."""
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


def exchange_seconds(
    num_ranks: int, buffer_bytes: float, bytes_per_second: float, latency_seconds: float = 0.0
) -> float:
    """Time of a ring all-gather or reduce-scatter, or of an all-to-all sent partner by partner.

    >>> exchange_seconds(4, 1e9, 1.5e9), exchange_seconds(4, 0.0, 1e9, 1e-6)
    (0.5, 3e-06)
    """
    moved = all_gather_bytes(num_ranks, buffer_bytes) / bytes_per_second
    return moved + (num_ranks - 1) * latency_seconds


def ring_all_reduce_seconds(
    num_ranks: int,
    buffer_bytes: float,
    bytes_per_second: float,
    latency_seconds: float = 0.0,
    *,
    host_seconds: float = 0.0,
) -> float:
    """Time of a ring all-reduce.

    `host_seconds` is what the processors need for its steps, as an all-reduce of next to nothing
    shows. They work while bytes travel, so that the longer of the two counts.

    >>> ring_all_reduce_seconds(4, 1e9, 1.5e9), ring_all_reduce_seconds(4, 0.0, 1e9, 1e-6)
    (1.0, 6e-06)
    """
    moved = all_reduce_bytes(num_ranks, buffer_bytes) / bytes_per_second
    return max(host_seconds, moved + 2.0 * (num_ranks - 1) * latency_seconds)


def doubling_all_reduce_seconds(
    num_ranks: int,
    buffer_bytes: float,
    bytes_per_second: float,
    latency_seconds: float = 0.0,
    *,
    host_seconds: float = 0.0,
) -> float:
    """Time of a recursive-doubling all-reduce: few steps, each with the whole buffer.

    Thakur et al. 2005, section 4.5: log2(n) exchanges with a partner; where n is no power of two,
    one step more to fold the others in and one to tell them.

    >>> doubling_all_reduce_seconds(4, 1e9, 1e9), doubling_all_reduce_seconds(3, 0.0, 1e9, 1e-6)
    (2.0, 3e-06)
    """
    _check(num_ranks)
    steps = num_ranks.bit_length() - 1
    if num_ranks & (num_ranks - 1):
        steps += 2
    return max(host_seconds, steps * (latency_seconds + buffer_bytes / bytes_per_second))


def ring_from_bytes(
    num_ranks: int,
    bytes_per_second: float,
    latency_seconds: float,
    *,
    ring_host_seconds: float = 0.0,
    doubling_host_seconds: float = 0.0,
) -> float:
    """The buffer above which a ring beats recursive doubling; infinite where it never does.

    >>> round(ring_from_bytes(4, 12.5e6, 1e-4)), ring_from_bytes(2, 12.5e6, 1e-4)
    (10000, inf)
    """
    ring_latency = ring_all_reduce_seconds(num_ranks, 0.0, 1.0, latency_seconds)
    latency = doubling_all_reduce_seconds(num_ranks, 0.0, 1.0, latency_seconds)
    per_byte = doubling_all_reduce_seconds(num_ranks, 1.0, bytes_per_second)
    saved = per_byte - ring_all_reduce_seconds(num_ranks, 1.0, bytes_per_second)
    if saved <= 0.0:
        return math.inf
    on_the_link = max(0.0, (ring_latency - latency) / saved)
    if latency + per_byte * on_the_link <= doubling_host_seconds:
        on_the_link = 0.0
    on_the_host = 0.0
    if ring_host_seconds > doubling_host_seconds:
        on_the_host = (ring_host_seconds - latency) / per_byte
    return max(on_the_link, on_the_host)


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
