"""Which GPUs are split how among workloads: the JSON contract of `ridgeline queue share`."""

from __future__ import annotations

from ridgeline.records.finite import Computed


class SharedPart(Computed, frozen=True, kw_only=True):
    """One part of one GPU."""

    part: str
    """A MIG profile, `1/4` of a GPU that is shared, or `1`."""
    workload: str
    """Whose replica has it; empty: it is free."""


class SharedGpu(Computed, frozen=True, kw_only=True):
    """One GPU and its parts."""

    number: int
    """From 1 on, over all GPUs of the plan."""
    device: str
    mode: str
    """`mig`, `whole`, `mps` or `time-slicing`."""
    parts: list[SharedPart]
    node: str
    """The kind of node that it is to stand in, by its configuration."""


class SharedWorkload(Computed, frozen=True, kw_only=True):
    """One workload and what it got."""

    workload: str
    device: str
    mode: str
    part: str
    replicas: int
    gpus_per_replica: int
    part_memory_bytes: int
    thread_percentage: float | None
    """The threads that a client may use (MPS); null elsewhere."""
    load: float
    """The load that was given, as a part of what its parts can do."""
    resource: str
    """What a pod asks for, as `nvidia.com/mig-3g.40gb`."""
    isolation: str
    """What the mode gives: `hardware`, `memory` or `none`."""
    basis: str
    """Whether the load was `measured` or `predicted`."""


class NodeKind(Computed, frozen=True, kw_only=True):
    """Nodes that are configured alike."""

    node: str
    device: str
    mode: str
    count: int
    """The number of such nodes."""
    gpus: int
    """GPUs that the plan uses of each."""
    labels: dict[str, str]
    """What to label them with."""
    cuts: dict[str, int]
    """MIG cuts as `1x3g.40gb+4x1g.10gb`, and how many GPUs of a node have each."""


class SharePlan(Computed, frozen=True, kw_only=True):
    """All GPUs, all workloads, and how far the plan is from the best."""

    gpus: list[SharedGpu]
    workloads: list[SharedWorkload]
    nodes: list[NodeKind]
    num_gpus: int
    usd_per_hour: float | None
    """None where a device has no price on record."""
    objective: str
    """What was made small: `cost` or `gpus`."""
    value: float
    """The objective of this plan: USD per hour, or GPUs."""
    at_least: float
    """No plan of this kind has less."""
    proved: bool
    """Whether the plan is known to be a best one."""
    whole_gpus: int | None
    """GPUs if each replica had GPUs of its own; null where that is not allowed."""
    caveats: dict[str, str]
    """For each mode, what its sharing does not protect from."""
    notes: list[str]
