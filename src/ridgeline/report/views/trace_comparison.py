"""What `ridgeline trace compare` shows: the verdict, operators, then kernels, then ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ridgeline import quantity
from ridgeline.report import document as doc
from ridgeline.report.views.trace import ROWS
from ridgeline.trace.kernel_names import short_name

if TYPE_CHECKING:
    from ridgeline.trace.compare.comparison import ComparedRow, TraceComparison

_FIGURES = (
    doc.words("status", ""),
    *doc.figures("calls"),
    doc.Column("us", "A"),
    doc.Column("us", "B"),
    doc.Column("ratio", "B / A"),
)
_TONES: dict[str, doc.Tone] = {
    "slower": "bad", "new": "warning", "more calls": "warning", "faster": "good", "gone": "good",
    "fewer calls": "good",
}  # fmt: skip
_OTHER_NAMES = 0.5
"""Share of kernel time that is new or gone, above which kernels stand beside their operators."""


def comparison_document(found: TraceComparison) -> doc.ReportDocument:
    """The verdict, then what changed most."""
    shown: list[doc.Block] = [
        doc.Paragraph(found.summary, "strong"),
        doc.Lines(found.warnings, "warning"),
    ]
    if found.operators:
        title = f"{found.measured} by operator{' and shape' if found.by == 'shape' else ''}"
        shown.append(_table("operator", title, found.operators))
    if _kernels_differ(found):
        shown.append(_behind_operators(found.operators))
        shown.append(_table("class", "GPU time by class of kernel", found.classes))
    elif found.kernels:
        shown.append(_table("kernel", "GPU time by kernel", found.kernels))
    return doc.ReportDocument("Comparison of traces", shown)


def ranks_document(ranks: Sequence[TraceComparison]) -> doc.ReportDocument:
    """The ranks of two jobs, the slowest against its own before first."""
    columns = (
        doc.words("rank"),
        doc.words("verdict"),
        doc.Column("ratio", "B / A"),
        doc.words("interval"),
        doc.Column("us", "idle A"),
        doc.Column("us", "idle B"),
    )
    order = sorted(ranks, key=lambda one: -(one.ratio or 0.0))
    rows = [
        (f"rank {one.rank}", one.verdict, one.ratio, quantity.interval(one.low, one.high),
         one.idle_a_us, one.idle_b_us)
        for one in order[:ROWS]
    ]  # fmt: skip
    left = [f"{len(ranks) - ROWS} more ranks"] if len(ranks) > ROWS else []
    return doc.ReportDocument("Rank by rank", [doc.DataTable(columns, rows), doc.Lines(left)])


def _table(what: str, title: str, rows: Sequence[ComparedRow]) -> doc.DataTable:
    cells = [
        doc.TableRow(
            (
                short_name(row.name) if what == "kernel" else row.name,
                row.status,
                _calls(row),
                row.total_a_us if row.calls_a else None,
                row.total_b_us if row.calls_b else None,
                row.ratio,
            ),
            _TONES.get(row.status, ""),
        )
        for row in rows[:ROWS]
    ]
    return doc.DataTable((doc.name("name", what), *_FIGURES), cells, title)


def _calls(row: ComparedRow) -> str:
    """How many in A and in B; once where they are as many."""
    same = row.calls_a == row.calls_b
    return f"{row.calls_a:,}" if same else f"{row.calls_a:,} → {row.calls_b:,}"


def _kernels_differ(found: TraceComparison) -> bool:
    """Have most kernels other names on the other side, as on another vendor's GPU?"""
    whole = sum(row.total_a_us + row.total_b_us for row in found.kernels)
    alone = sum(
        row.total_a_us + row.total_b_us for row in found.kernels if row.status in {"new", "gone"}
    )
    return found.by != "kernel" and alone > _OTHER_NAMES * whole


def _behind_operators(rows: Sequence[ComparedRow]) -> doc.DataTable:
    columns = (
        doc.name("name", "operator"),
        doc.name("kernels_a", "kernels in A"),
        doc.name("kernels_b", "kernels in B"),
    )
    cells = [(row.name, _named(row.kernels_a), _named(row.kernels_b)) for row in rows[:ROWS]]
    return doc.DataTable(columns, cells, "Kernels behind the operators")


def _named(kernels: Sequence[str]) -> str:
    """The longest kernel, and how many others there are."""
    if not kernels:
        return "–"
    more = f" +{len(kernels) - 1}" if len(kernels) > 1 else ""
    return f"{short_name(kernels[0])}{more}"
