"""What `ridgeline trace` shows of a program's own structure: its modules, its named ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ridgeline import quantity
from ridgeline.report import document as doc
from ridgeline.report.views.trace import ROWS, on_page, table_of, title

if TYPE_CHECKING:
    from ridgeline.trace.time.annotations import RankRanges
    from ridgeline.trace.time.modules import RankModules

MODULES = (
    doc.name("name", "module"),
    doc.Column("calls"),
    on_page("operators"),
    doc.Column("host_us"),
    doc.Column("host_self_us"),
    doc.Column("forward_gpu_us", "GPU forward"),
    doc.Column("backward_gpu_us", "GPU backward"),
    doc.Column("gpu_share", "of GPU"),
)
MODULE_CLASSES = (
    doc.name("name", "class, by itself"),
    doc.Column("modules"),
    doc.Column("calls"),
    doc.Column("host_self_us", "host"),
    doc.Column("forward_gpu_self_us", "GPU forward"),
    doc.Column("backward_gpu_self_us", "GPU backward"),
    doc.Column("gpu_share", "of GPU"),
)
RANGES = (
    doc.name("name", "range"),
    doc.Column("count"),
    doc.Column("host_us"),
    on_page("host_self_us"),
    doc.Column("gpu_us", "GPU"),
    doc.Column("gpu_share", "of GPU"),
    on_page("gpu_span_us", "GPU span"),
    doc.Column("gpu_idle_us", "GPU idle"),
    on_page("flops"),
    doc.Column("flops_utilization", "MFU"),
)


def modules_document(ranks: Sequence[RankModules]) -> doc.ReportDocument:
    """The model as a tree, and its classes, per rank."""
    shown: list[doc.Block] = []
    for rank in ranks:
        if rank.note is not None:
            shown.append(title(rank, rank.note))
            continue
        outside, whole = map(quantity.microseconds, (rank.gpu_outside_us, rank.gpu_us))
        shown.append(title(rank, f"GPU time {whole}, {outside} of it in no module"))
        learns = any(use.backward_gpu_us for use in rank.modules)
        first, *others = _without_backward(MODULES, learns=learns)
        rows = [
            ("  " * use.depth + use.name, *(getattr(use, column.field) for column in others))
            for use in rank.modules
        ]
        shown.append(doc.DataTable((first, *others), rows))
        classes = _without_backward(MODULE_CLASSES, learns=learns)
        shown.append(table_of(classes, rank.classes[:ROWS]))
    return doc.ReportDocument("Modules", shown)


def annotations_document(ranks: Sequence[RankRanges]) -> doc.ReportDocument:
    """The user's named ranges, by name or as a tree, per rank."""
    shown: list[doc.Block] = []
    for rank in ranks:
        if rank.note is not None:
            shown.append(title(rank, rank.note))
            continue
        outside, whole = map(quantity.microseconds, (rank.gpu_outside_us, rank.gpu_us))
        ranges = "1 range" if rank.count == 1 else f"{quantity.count(rank.count)} ranges"
        shown.append(title(rank, f"{ranges}, GPU time {whole}, {outside} of it in none"))
        first, *others = RANGES
        rows = [
            (
                "  " * use.depth + use.name,
                *(getattr(use, column.field) for column in others[:-1]),
                None if use.flops_utilization is None else quantity.percent(use.flops_utilization),
            )
            for use in rank.ranges
        ]
        shown.append(doc.DataTable((first, *others), rows))
    return doc.ReportDocument("Named ranges", shown)


def _without_backward(columns: Sequence[doc.Column], *, learns: bool) -> list[doc.Column]:
    """The columns for a trace of inference, which has no backward."""
    return [column for column in columns if learns or "backward" not in column.field]
