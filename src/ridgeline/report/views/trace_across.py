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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ridgeline.trace.time.across_ranks import KernelOverRanks, KernelsOverRanks


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


_MOST_RANKS = 4
"""So many ranks are named in a cell."""


def ranks_document(found: KernelsOverRanks) -> doc.ReportDocument:
    """Classes and kernels over the ranks, and the ranks that stand out."""
    times = sorted((rank.gpu_us, rank.rank) for rank in found.ranks)
    (low, least), (high, most) = times[0], times[-1]
    said = (
        f"{len(found.ranks)} ranks: GPU time from {quantity.microseconds(low)} (rank {least}) to"
        f" {quantity.microseconds(high)} (rank {most})"
    )
    odd = [
        f"rank {rank.rank} in {rank.stands_out_in}"
        for rank in sorted(found.ranks, key=lambda rank: -rank.stands_out_in)
        if rank.stands_out_in
    ]
    outliers = (
        f"stand out in the times of kernels: {', '.join(odd)}" if odd else "no rank stands out"
    )
    note = (
        "spread: highest less lowest over the mean. A collective waits for the rank that comes"
        " last, which has the least of it"
    )
    shown: list[doc.Block] = [
        doc.Paragraph(said, "strong"),
        doc.Paragraph(outliers),
        doc.DataTable(_columns("class"), _rows(found.classes)),
        doc.DataTable(_columns("kernel"), _rows(found.kernels)),
        doc.Paragraph(note, "dim"),
    ]
    return doc.ReportDocument("Kernels over ranks", shown)


def _columns(first: str) -> tuple[doc.Column, ...]:
    return (
        doc.name("name", first),
        doc.Column("mean_calls", "calls"),
        doc.Column("mean_us"),
        doc.Column("min_us"),
        doc.Column("rank", "on"),
        doc.Column("max_us"),
        doc.Column("rank", "on"),
        doc.Column("spread_share"),
        doc.words("outliers", "outliers"),
    )


def _rows(kernels: Sequence[KernelOverRanks]) -> list[tuple[doc.Cell, ...]]:
    return [
        (
            one.name,
            one.mean_calls,
            one.mean_us,
            one.min_us,
            str(one.min_rank),
            one.max_us,
            str(one.max_rank),
            one.spread_share,
            _few(one.outlier_ranks),
        )
        for one in kernels
    ]


def _few(ranks: Sequence[int]) -> str | None:
    if not ranks:
        return None
    more = f" +{len(ranks) - _MOST_RANKS}" if len(ranks) > _MOST_RANKS else ""
    return ", ".join(map(str, ranks[:_MOST_RANKS])) + more
