"""What `ridgeline trace memory` shows, of traces and of memory snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ridgeline import quantity
from ridgeline.report import document as doc
from ridgeline.report.views.trace import HOLDERS, LEVELS, ROWS, table_of, title

if TYPE_CHECKING:
    from ridgeline.trace.memory.allocations import DeviceMemory, RankMemory
    from ridgeline.trace.memory.snapshot import SnapshotMemory


def memory_document(ranks: Sequence[RankMemory]) -> doc.ReportDocument:
    """Memory per rank and device: the peak, who holds it, and what only grows."""
    shown: list[doc.Block] = []
    for rank in ranks:
        if rank.note is not None:
            shown.append(title(rank, rank.note))
        for device in rank.devices:
            facts = [f"{device.device}: {quantity.count(device.events)} events"]
            if device.peak_bytes is not None:
                facts.append(f"peak {quantity.memory(device.peak_bytes)}")
            if device.fragmentation is not None:
                facts.append(f"{quantity.percent(device.fragmentation)} of reserved unused then")
            shown += [title(rank, ", ".join(facts)), *_held(device)]
    return doc.ReportDocument("Memory", shown)


def _held(device: DeviceMemory) -> list[doc.Block]:
    """Who holds the peak and, where memory grows, the level of each step and what is kept."""
    grows = device.growth.verdict == "grows"
    start = " (counted from the start of the trace)" if device.start_bytes is None else ""
    growth = f"memory {device.growth.sentence}{start}"
    shown: list[doc.Block] = [doc.Paragraph(growth, "warning" if grows else "dim")]
    if device.held_by_phase:
        phases = (f"{name} {quantity.memory(size)}" for name, size in device.held_by_phase.items())
        shown.append(doc.Paragraph("allocated in " + ", ".join(phases), "dim"))
    if grows:
        steps = device.growth.steps
        every = -(-len(steps) // ROWS)  # of many steps some, the last among them
        shown.append(table_of(LEVELS, steps[::-every][::-1]))
        shown.append(doc.Chapter("Kept", [table_of(HOLDERS, device.growth.kept)]))
    if device.holders or device.before_bytes:
        table = table_of(HOLDERS, device.holders)
        before = ("(before the trace)", "–", "–", "–", device.before_bytes)
        rows = [before, *table.rows] if device.before_bytes else table.rows
        shown.append(doc.Chapter("Held at the peak", [doc.DataTable(HOLDERS, rows)]))
    return shown


def snapshot_document(devices: Sequence[SnapshotMemory]) -> doc.ReportDocument:
    """What a memory snapshot says: totals, who held the peak, what only grows."""
    shown: list[doc.Block] = []
    columns = (doc.name("site", "held by"), doc.Column("bytes"), doc.Column("blocks"))
    for memory in devices:
        shown.append(doc.Lines(memory.warnings, "warning"))
        peak, active, reserved = map(
            quantity.memory, (memory.peak_bytes, memory.active_bytes, memory.reserved_bytes)
        )
        lost = f"{quantity.percent(memory.fragmentation)} lost to fragmentation"
        said = f"GPU {memory.device}: peak {peak}, now {active} of {reserved} reserved, {lost}"
        shown.append(doc.Paragraph(said, "strong"))
        growth = f"memory {memory.growth_sentence}"
        shown.append(doc.Paragraph(growth, "warning" if memory.growing else "dim"))
        held = table_of(columns, memory.peak_by_site[:ROWS])
        shown.append(doc.Chapter("Held at the peak", [held]))
        if memory.growing:
            kept = table_of(columns, memory.growth_by_site[:ROWS])
            shown.append(doc.Chapter("Kept: allocated in the history, not freed", [kept]))
    return doc.ReportDocument("Memory snapshot", shown)
