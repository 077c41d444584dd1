"""What `ridgeline kernels occupancy` shows: resident warps, what limits them, what would help."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.records.kernel_occupancy import KernelOccupancy, OccupancyChange
from ridgeline.report import document as doc

LIMITS = {
    "warps": "warp slots",
    "blocks": "block slots",
    "registers": "registers",
    "shared": "shared memory",
}
"""The limits in words."""


def occupancy_document(found: KernelOccupancy) -> doc.ReportDocument:
    """The answer in a line, the four limits, and the nearest changes that raise it."""
    rows = [
        (LIMITS[name], str(most), "limits" if name in found.limiters else "")
        for name, most in found.limits.items()
    ]
    columns = (doc.words("resource"), doc.Column("blocks", "blocks it allows"), doc.words("", ""))
    size = f"{found.threads_per_block} threads, {found.registers_per_thread} registers each"
    title = f"{found.target}: {size}, {quantity.binary_memory(found.shared_bytes_per_block)} shared"
    parts: list[doc.Block] = [
        doc.Paragraph(in_a_line(found)),
        doc.DataTable(columns, rows, title=title),
    ]
    if found.changes:
        parts.append(doc.Lines([f"to raise it: {change_in_words(one)}" for one in found.changes]))
    return doc.ReportDocument("Occupancy", parts)


def in_a_line(found: KernelOccupancy) -> str:
    """The occupancy with its limiters, in one sentence."""
    limiters = " and ".join(LIMITS[one] for one in found.limiters)
    if not found.blocks:
        return f"such a block cannot be launched on {found.target}: not enough {limiters}"
    warps = f"{found.warps} of {found.max_warps} warps"
    share = f"{found.occupancy:.1%}: {found.blocks} blocks, {warps}"
    return f"{share}, limited by {limiters}" if limiters else f"{share}; nothing limits it"


def change_in_words(change: OccupancyChange) -> str:
    """A change with what it would raise occupancy to."""
    wanted = []
    if change.threads_per_block is not None:
        wanted.append(f"{change.threads_per_block} threads per block")
    if change.registers_per_thread is not None:
        wanted.append(f"at most {change.registers_per_thread} registers")
    if change.shared_bytes_per_block is not None:
        wanted.append(f"at most {change.shared_bytes_per_block:,} bytes of shared memory")
    return f"{' and '.join(wanted)} ({change.occupancy:.1%})"
