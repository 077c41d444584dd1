"""What `ridgeline trace …` shows of whole traces, or of several of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ridgeline import quantity
from ridgeline.report import document as doc
from ridgeline.report.views.trace import PARTS, ROWS, table_of
from ridgeline.trace.kernel_names import short_name

if TYPE_CHECKING:
    from ridgeline.trace.communication.stragglers import Stragglers
    from ridgeline.trace.critical_path.path import CriticalPath
    from ridgeline.trace.pictures.flame import FlameNode


LATE_RANKS = (
    doc.words("rank", "Rank"),
    doc.Column("last_arrivals", "last in"),
    doc.Column("caused_wait_us", "others waited"),
    doc.Column("skew_wait_us", "waited itself"),
    doc.Column("communication_us"),
    doc.Column("clock_offset_us", "clock"),
)
DEEPEST = 12
"""Branches of a tree further down are folded."""
_NARROWEST = 0.01
"""Branches of a tree below this share of the whole are folded."""


def critical_path_document(path: CriticalPath) -> doc.ReportDocument:
    """Shares by class and the longest names."""
    shown: list[doc.Block] = [doc.Lines(path.warnings, "warning")]
    if path.window_us:
        shown.append(doc.Paragraph(f"Window {quantity.microseconds(path.window_us)}", "strong"))
        classes = (doc.words("name", "On the path"), *PARTS[2:])
        shown.append(table_of(classes, path.classes))
        shown.append(table_of(PARTS, path.names[:ROWS]))
    if path.what_if is not None:
        shorter = ", ".join(f"{name} −{by:g} %" for name, by in path.what_if.shortened.items())
        window, saved = map(quantity.microseconds, (path.what_if.window_us, path.what_if.saved_us))
        faster = quantity.ratio(path.what_if.speedup)
        shown.append(doc.Paragraph(f"With {shorter}: {window}, {saved} less, {faster}", "good"))
    return doc.ReportDocument("Critical path", shown)


def stragglers_document(found: Stragglers) -> doc.ReportDocument:
    """Who comes last, and what it costs the others."""
    shown: list[doc.Block] = [doc.Lines(found.warnings, "warning")]
    if not found.matched:
        shown.append(doc.Paragraph("No collective that two of the ranks took part in."))
        return doc.ReportDocument("Stragglers", shown)
    shown += [doc.Paragraph(stragglers_line(found)), stragglers_table(found, ROWS)]
    largest = sorted(found.collectives, key=lambda row: -row.skew_us)[:ROWS]
    columns = (
        doc.name("name", "Collective"),
        doc.Column("skew_us"),
        doc.Column("transfer_us"),
        doc.words("last"),
        doc.Column("bytes"),
        doc.Column("bus_bytes_per_second", "bus"),
    )
    rows = [
        (one.name, one.skew_us, one.transfer_us, f"rank {one.last_rank}", one.bytes,
         one.bus_bytes_per_second)
        for one in largest
    ]  # fmt: skip
    return doc.ReportDocument("Stragglers", [*shown, doc.DataTable(columns, rows)])


def stragglers_line(found: Stragglers) -> str:
    """What transfers need, and what waiting for the last adds."""
    needed, waited = map(quantity.microseconds, (found.transfer_us, found.waited_us))
    return (
        f"{found.matched} collectives were matched across ranks: transfers need {needed}, all"
        f" ranks together waited {waited} for the last to arrive."
    )


def stragglers_table(found: Stragglers, most: int, *, sortable: bool = False) -> doc.DataTable:
    """How late each rank was, the first `most` of them."""
    rows = [
        (str(row.rank), *(getattr(row, column.field) for column in LATE_RANKS[1:]))
        for row in found.ranks[:most]
    ]
    return doc.DataTable(LATE_RANKS, rows, sortable=sortable)


def tree_document(roots: Sequence[FlameNode], top: int) -> doc.ReportDocument:
    """The nesting, widest first; small branches are folded."""
    rows: list[tuple[doc.Cell, ...]] = []
    whole = max(sum(max(node.host_us, node.gpu_us) for node in roots), 1e-9)

    def add(node: FlameNode, depth: int) -> None:
        small = max(node.host_us, node.gpu_us) < _NARROWEST * whole
        if depth > DEEPEST or len(rows) >= top or small:
            return
        indented = "  " * depth + short_name(node.name)
        rows.append((indented, node.host_us, node.own_us, node.gpu_us, str(node.calls)))
        for child in node.children:
            add(child, depth + 1)

    for root in roots:
        add(root, 0)
    times = (doc.Column("us", "host"), doc.Column("us", "own"), doc.Column("us", "GPU"))
    return doc.ReportDocument(
        "Tree", [doc.DataTable((doc.name("where", "Where"), *times, doc.Column("calls")), rows)]
    )
