"""Which way a copy goes, by its name, and what of it no kernel covers."""

from __future__ import annotations

import re

import numpy as np

from ridgeline.trace.columns import Ints, Kind
from ridgeline.trace.intervals import clipped, intersection, measure, union
from ridgeline.trace.sorting import distinct
from ridgeline.trace.windows import View

MEMSET = "memset"
_DIRECTION = re.compile(r"\b(?:Unified )?([HDPAM])(?:to|2)([HDPAM])\b")
_SPELLED = {
    "HostToDevice": "HtoD", "DeviceToHost": "DtoH", "DeviceToDevice": "DtoD", "PeerToPeer": "PtoP",
    "HostToHost": "HtoH",
}  # fmt: skip
"""Directions as roctracer writes them."""


def direction_of(name: str, kind: int) -> tuple[str, str | None]:
    """Direction of a copy, and what kind of memory the host's side is.

    >>> direction_of("Memcpy DtoH (Device -> Pageable)", 1), direction_of("Memset (Device)", 2)
    (('DtoH', 'pageable'), ('memset', None))
    >>> direction_of("CopyHostToDevice", 1), direction_of("Memcpy HtoD (Pinned -> Device)", 1)
    (('HtoD', None), ('HtoD', 'pinned'))
    """
    if kind == Kind.MEMSET:
        return MEMSET, None
    ends = _DIRECTION.search(name)
    if ends is not None:
        direction = "to".join("H" if end == "M" else end for end in ends.groups())
    else:
        direction = next((short for long, short in _SPELLED.items() if long in name), "other")
    memory = next((word for word in ("pageable", "pinned") if word in name.lower()), None)
    return direction, memory if "H" in direction else None


def rows_towards(view: View, direction: str) -> Ints:
    """Rows of the GPU table with copies of one direction."""
    gpu, names = view.trace.gpu, view.trace.names
    rows = view.rows[gpu.kind[view.rows] == Kind.MEMCPY]
    said = [name for name in distinct(gpu.name[rows])
            if direction_of(names[name], Kind.MEMCPY)[0] == direction]  # fmt: skip
    found: Ints = rows[np.isin(gpu.name[rows], said)]
    return found


def exposed_us(view: View, rows: Ints) -> float:
    """How long some of the copies run while no kernel does."""
    gpu = view.trace.gpu
    copying = clipped(union(gpu.start_us[rows], gpu.ends_of(rows)), view.start_us, view.end_us)
    kernels = view.set_of(gpu.kind == Kind.KERNEL)
    return measure(copying) - measure(intersection(copying, kernels))
