"""What is left of a cluster that is filled under one rule or another: `ridgeline queue place`.

Shares are of all GPUs of the cluster; means, and the least and most over the seeds.
"""

from __future__ import annotations

import msgspec

from ridgeline.records.finite import Computed


class PlacedPoint(Computed, frozen=True, kw_only=True):
    """The cluster at the moment when so much had been asked for."""

    arrived_share: float
    """Demand so far, of all GPUs; above 1 where more was asked for than there is."""
    allocated_share: float
    allocated_share_least: float
    allocated_share_most: float
    fragmented_share: float
    """F of the cluster (Weng et al., ATC 2023): what is left and the next task cannot use."""
    fragmented_share_of_free: float | None
    """The part of the GPUs left that the next task cannot use; null where none is left."""


class PlacementOutcome(Computed, frozen=True, kw_only=True):
    """One rule, over all seeds."""

    policy: str
    title: str
    points: list[PlacedPoint]
    """The last is the end of the arrivals."""
    refused_tasks: float
    """Tasks that no node had room for, mean over seeds."""
    nodes_partly_used: float
    """Nodes with some GPUs in use and some free."""
    large_nodes_free: float
    """Nodes of the largest size with all GPUs free: what a job of a whole node needs."""


class QueuePlacement(Computed, frozen=True, kw_only=True):
    """Tasks that arrive and stay, under several rules side by side."""

    tasks: str
    cluster: str
    num_tasks: int
    """Tasks of the file; more are drawn from them."""
    nodes: int
    gpus: int
    seeds: int
    policies: list[PlacementOutcome]
    notes: list[str] = msgspec.field(default_factory=list)
    """What was left out of the files, and how they were understood."""
