"""How many of a kernel's warps a multiprocessor holds at once, what stops more, what would help."""

from __future__ import annotations

import msgspec


class OccupancyChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One change of a launch that raises its occupancy; what is None stays as it is."""

    threads_per_block: int | None = None
    registers_per_thread: int | None = None
    """At most this many."""
    shared_bytes_per_block: int | None = None
    """At most this many."""
    occupancy: float
    """What it would be then."""


class KernelOccupancy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Blocks and warps of one kernel that are resident on one multiprocessor."""

    target: str
    """The name of the architecture: `sm_90`, `gfx942`."""
    threads_per_block: int
    registers_per_thread: int
    shared_bytes_per_block: int
    """Static and dynamic together, without what the driver reserves."""
    blocks: int
    """How many blocks are resident; 0 where such a block cannot be launched."""
    warps: int
    max_warps: int
    occupancy: float
    """Resident warps over the most that fit, 0 … 1."""
    limits: dict[str, int]
    """How many blocks each of `warps`, `blocks`, `registers`, `shared` allows by itself."""
    limiters: list[str]
    """The resources that allow the fewest; empty at an occupancy of 1."""
    changes: list[OccupancyChange]
    """The nearest changes that raise it, one of each kind."""
