"""What a probe has measured of the links between the ranks of a job, beside what theory says."""

from __future__ import annotations

import msgspec


class NeighbourLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The way from a rank to the next one, which a ring sends over."""

    source: int
    target: int
    latency_seconds: float
    """Half of a round trip of next to nothing."""
    bytes_per_second: float
    """One way, beyond the latency."""


class CollectiveTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One collective at one size: the best of several calls, of the rank where that is longest."""

    operation: str
    """One of `all-reduce`, `all-gather` or `all-to-all`."""
    buffer_bytes: int
    """The whole buffer that a rank ends up with."""
    seconds: float
    foretold_seconds: float
    """By the formula of `cost/` for a ring over the slowest of the neighbours' links."""


class LinkRates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The links of a job of so many ranks."""

    num_ranks: int
    backend: str
    """Who moves the bytes, `gloo` or `nccl`."""
    device_name: str
    neighbours: list[NeighbourLink]
    collectives: list[CollectiveTime]
    date: str
    """The date in ISO 8601, UTC."""
