"""What `ridgeline trace ranks` shows: the kernel times of all ranks in one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ridgeline import quantity
from ridgeline.report import document as doc

if TYPE_CHECKING:
    from ridgeline.trace.time.across_ranks import KernelOverRanks, KernelsOverRanks

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
