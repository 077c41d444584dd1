"""What `ridgeline trace counters` shows: kernels with what their counters say bounds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ridgeline import quantity
from ridgeline.report import document as doc
from ridgeline.trace.kernel_names import short_name

if TYPE_CHECKING:
    from ridgeline.trace.kernel_counters import KernelCounters

COLUMNS = (
    doc.words("kernel"),
    *doc.figures("launches", "time", "arithmetic", "memory", "DRAM", "occupancy"),
    doc.words("bound"),
)
MOST_WAITS = 3


def counters_document(kernels: Sequence[KernelCounters]) -> doc.ReportDocument:
    """A row for each kernel, and the evidence below."""
    rows = [_row(one) for one in kernels]
    lines = []
    for one in kernels:
        lines.append(f"{short_name(one.name)}: {one.because}")
        waits = [f"{wait.reason} {quantity.percent(wait.share, 0)}" for wait in one.waits]
        if waits:
            lines.append(f"  warps wait: {', '.join(waits[:MOST_WAITS])}")
    shown: list[doc.Block] = [doc.DataTable(COLUMNS, rows), doc.Lines(lines)]
    return doc.ReportDocument("Counters of kernels", shown)


def _row(one: KernelCounters) -> tuple[doc.Cell, ...]:
    rate = one.dram_bytes_per_second
    return (
        short_name(one.name),
        f"{one.launches:,}",
        None if one.total_us is None else quantity.microseconds(one.total_us),
        _percent(one.sm_percent),
        _percent(one.memory_percent if one.memory_percent is not None else one.dram_percent),
        None if rate is None else quantity.scaled(rate, "B/s"),
        _percent(one.achieved_occupancy_percent),
        one.bound,
    )


def _percent(value: float | None) -> str | None:
    return None if value is None else quantity.percent(value / 100, 0)
