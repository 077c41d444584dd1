"""Collectives that the host carries out itself: gloo, MPI, UCC and oneCCL on CPUs.

They have no kernels. A process group opens a range around each (`gloo:all_reduce`, on a thread of
its own; `oneccl_bindings_for_pytorch::allreduce`), which carries the shapes of its inputs when the
trace has them and was loaded with `details`. Ranges of NCCL are not among them: its kernels are
what counts.
"""

from __future__ import annotations

import re

import numpy as np

from ridgeline.trace.columns import ABSENT, Trace
from ridgeline.trace.communication.collectives import (
    CollectiveCall,
    CollectiveUse,
    RankCommunication,
    collective_use,
    communication,
    kind_of,
    message_size,
)
from ridgeline.trace.host_calls import names_matching
from ridgeline.trace.intervals import measure, union
from ridgeline.trace.windows import RankRecord, host_window

_CARRIED_OUT_HERE = re.compile(
    r"^(gloo|mpi|ucc):(?!:)|^(oneccl_bindings_for_pytorch|torch_ccl)::(?!wait|barrier_wait)"
)


class HostCommunication(RankRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Collectives on the host of one rank."""

    world_size: int | None
    communication_us: float
    """The time in which one ran, or several."""
    calls: int
    sized_calls: int
    """Calls whose size the trace tells."""
    collectives: list[CollectiveUse]
    """The collectives, most time first."""


def all_communication(
    trace: Trace, window: str = "trace", *, top: int = 30
) -> list[RankCommunication | HostCommunication]:
    """Communication of each GPU of the trace, and of its host where that has any."""
    on_host = host_communication(trace, window, top=top)
    found = communication(trace, window, top=top)
    return [*found, on_host] if on_host is not None else [*found]


def host_communication(
    trace: Trace, window: str = "trace", *, top: int = 30
) -> HostCommunication | None:
    """Collectives that the host carries out; None where it does none."""
    host = trace.host
    first, last = host_window(trace, window)
    ranges = names_matching(trace, _CARRIED_OUT_HERE)
    if not ranges.any():
        return None
    rows = np.flatnonzero(ranges[host.name] & (host.start_us >= first) & (host.start_us < last))
    if not len(rows):
        return None
    groups: dict[CollectiveCall, list[int]] = {}
    for row in rows.tolist():
        name, shape = trace.names[host.name[row]], int(host.shape[row])
        size, dtype = message_size(trace.shapes[shape] if shape != ABSENT else None)
        call = CollectiveCall(
            kind=kind_of(name),
            kernel=name,
            group=None,
            group_size=trace.world_size,
            dtype=dtype,
            bytes=size,
        )
        groups.setdefault(call, []).append(row)
    found = [collective_use(call, host.duration_us[own], None) for call, own in groups.items()]
    found.sort(key=lambda use: -use.total_us)
    return HostCommunication(
        file=trace.file,
        rank=trace.rank,
        world_size=trace.world_size,
        communication_us=measure(union(host.start_us[rows], host.ends_of(rows))),
        calls=len(rows),
        sized_calls=sum(use.count for use in found if use.bytes),
        collectives=found[:top],
    )
