"""Every question to a single trace."""

from __future__ import annotations

from typing import Any

from ridgeline.trace.communication.collectives import communication
from ridgeline.trace.communication.overlap import overlap
from ridgeline.trace.memory.allocations import memory_use
from ridgeline.trace.time.annotations import annotation_times
from ridgeline.trace.time.copies import copies
from ridgeline.trace.time.idle import idle_time
from ridgeline.trace.time.kernels import kernel_use
from ridgeline.trace.time.launch import launches
from ridgeline.trace.time.modules import module_times
from ridgeline.trace.time.operators import operator_times
from ridgeline.trace.time.queue_length import queue_lengths
from ridgeline.trace.time.sequences import kernel_sequences
from ridgeline.trace.time.steps import step_times
from ridgeline.trace.time.summary import summarize
from ridgeline.trace.time.sync import sync_points

QUESTIONS: tuple[Any, ...] = (
    summarize,
    idle_time,
    kernel_use,
    kernel_sequences,
    overlap,
    communication,
    copies,
    launches,
    queue_lengths,
    sync_points,
    step_times,
    operator_times,
    module_times,
    annotation_times,
    memory_use,
)
