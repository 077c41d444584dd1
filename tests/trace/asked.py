"""Every question to a single trace."""

from __future__ import annotations

from typing import Any

from ridgeline.trace.communication import communication
from ridgeline.trace.idle import idle_time
from ridgeline.trace.kernels import kernel_use
from ridgeline.trace.launch import launches
from ridgeline.trace.memory import memory_use
from ridgeline.trace.operators import operator_times
from ridgeline.trace.overlap import overlap
from ridgeline.trace.steps import step_times
from ridgeline.trace.summary import summarize
from ridgeline.trace.sync import sync_points

QUESTIONS: tuple[Any, ...] = (
    summarize,
    idle_time,
    kernel_use,
    overlap,
    communication,
    launches,
    sync_points,
    step_times,
    operator_times,
    memory_use,
)
