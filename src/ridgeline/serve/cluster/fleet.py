"""What is said of a fleet that scales."""

from __future__ import annotations

import msgspec


class FleetReport(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet at one moment; in `/health` and `/metrics`."""

    desired: int
    """What the policy wanted last."""
    ready: int
    starting: int
    """Processes that load their model, for the first time or again."""
    draining: int
    """Processes that finish what they have, or are ending."""
    replica_seconds: float
    """Time that processes have existed so far, summed: what a fleet costs."""
    startup_seconds: float | None
    """Of the last start, from the process's beginning until it took requests."""
