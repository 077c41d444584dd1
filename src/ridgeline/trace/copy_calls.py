"""Calls that copy, and return when the copy is done or all but done.

A copy from or to memory that is not pinned goes through a buffer of the driver, a piece at a time:
`cudaMemcpyAsync` returns when the last piece is in the buffer, some microseconds before the copy
ends. Until then the host waits for the copy, as it does in `cudaMemcpy`.
"""

from __future__ import annotations

import re

import numpy as np

from ridgeline.trace.columns import ABSENT, Ints, Kind, Mask, Trace
from ridgeline.trace.host_calls import launch_rows, names_matching
from ridgeline.trace.sorting import distinct

_COPIES = re.compile(r"Memcpy")
_PAGEABLE = re.compile(r"Pageable")
_MOST = 0.5
"""A call that goes on for a larger part of its copy has fed the copy."""


def blocking_copies(trace: Trace) -> Ints:
    """Rows of calls that copy and return only when the copy is done, or all but done."""
    return trace.derived("blocking_copies", _blocking_copies)


def _blocking_copies(trace: Trace) -> Ints:
    host, gpu, launches = trace.host, trace.gpu, launch_rows(trace)
    known = np.flatnonzero((launches != ABSENT) & (gpu.kind != Kind.KERNEL))
    calls = launches[known]
    blocked = (host.end_us[calls] >= gpu.end_us[known]) | staged_copies(trace)[known]
    blocked &= names_matching(trace, _COPIES)[host.name[calls]]
    return distinct(calls[blocked]).astype(np.int64)


def staged_copies(trace: Trace) -> Mask:
    """Which GPU events are copies that their call fed, and ended a little before them."""
    return trace.derived("staged_copies", _staged_copies)


def _staged_copies(trace: Trace) -> Mask:
    host, gpu, launches = trace.host, trace.gpu, launch_rows(trace)
    found: Mask = (launches != ABSENT) & (gpu.kind == Kind.MEMCPY)
    found &= names_matching(trace, _PAGEABLE)[gpu.name]
    rows = np.flatnonzero(found)
    fed_us = host.end_us[launches[rows]] - gpu.start_us[rows]
    found[rows] = (fed_us > _MOST * gpu.duration_us[rows]) & (fed_us < gpu.duration_us[rows])
    return found
