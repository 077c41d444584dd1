"""Nodes that come and go with the queue: the JSON of `ridgeline queue simulate --autoscale`.

Waiting is from submission to start. Costs are of nodes from being asked for until they go.
"""

from __future__ import annotations

from ridgeline.records.finite import Computed


class ScaledSetting(Computed, frozen=True, kw_only=True):
    """One setting, and what it did to the trace."""

    min_nodes: int
    max_nodes: int
    idle_seconds: float
    """A node goes that has been empty for so long."""
    mean_wait_seconds: float
    p50_wait_seconds: float
    p95_wait_seconds: float
    node_hours: float
    cost_usd: float | None
    """None where no price of a node-hour was given."""
    most_nodes: int
    """The most nodes that were there or on their way at once."""
    utilisation: float
    """The GPU-hours of all jobs, as a part of those that were paid for."""
    meets: bool
    """Whether 95 % of the jobs wait no longer than the objective."""


class NodeAutoscaling(Computed, frozen=True, kw_only=True):
    """Every setting that was tried, the cheapest that meets the objective first."""

    trace: str
    jobs: int
    gpus_per_node: int
    delay_seconds: float
    """From asking for a node until it takes jobs."""
    objective_seconds: float | None
    """The longest wait that 95 % of the jobs may have; None: nothing was asked for."""
    best: ScaledSetting | None
    """The cheapest that meets the objective; None where none does."""
    fixed: ScaledSetting
    """The largest setting's nodes, if they never went."""
    settings: list[ScaledSetting]
    notes: list[str]
