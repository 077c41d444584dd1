"""What `ridgeline trace sequences` shows: kernels that recur in order, and chains to fuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ridgeline import quantity
from ridgeline.report import document as doc
from ridgeline.report.views.trace import title
from ridgeline.trace.kernel_names import short_name

if TYPE_CHECKING:
    from ridgeline.trace.time.fusion import FusionCandidate
    from ridgeline.trace.time.sequences import RankSequences

SEQUENCES = (
    doc.Column("count"),
    doc.Column("total_us"),
    doc.Column("share"),
    doc.Column("mean_us", "each"),
    doc.Column("mean_gap_us", "gaps"),
    doc.name("kernels", "kernels, in order"),
)
CANDIDATES = (
    doc.Column("worth_us", "worth up to"),
    doc.Column("count"),
    doc.Column("total_us"),
    doc.Column("saved_bytes", "less to move"),
    doc.name("kernels", "kernels, in order"),
)
_BOUND = (
    "worth: the chain's time less its longest kernel or, where shapes and device are known, the"
    " time that memory needs for what remains; an upper bound"
)


def sequences_document(ranks: Sequence[RankSequences]) -> doc.ReportDocument:
    """Sequences and fusion candidates, per GPU."""
    shown: list[doc.Block] = []
    for rank in ranks:
        whole = quantity.microseconds(rank.kernels_us)
        shown.append(title(rank, f"{quantity.count(rank.kernels)} kernels, {whole}"))
        if not rank.sequences:
            shown.append(doc.Paragraph("No two kernels follow each other twice.", "dim"))
        rows = [
            (one.count, one.total_us, one.share, one.mean_us, one.mean_gap_us, _order(one.kernels))
            for one in rank.sequences
        ]
        if rows:
            shown.append(doc.DataTable(SEQUENCES, rows))
        if rank.candidates:
            chains = [
                (one.worth_us, one.count, one.total_us, one.saved_bytes, _chain(one))
                for one in rank.candidates
            ]
            table = doc.DataTable(CANDIDATES, chains)
            shown.append(doc.Chapter("Could be one kernel", [table], _BOUND))
    return doc.ReportDocument("Kernel sequences", shown)


def _chain(one: FusionCandidate) -> str:
    """The operators of a chain, and the kernels where the trace does not tell them."""
    parts = [
        operator or kernel for operator, kernel in zip(one.operators, one.kernels, strict=True)
    ]
    return _order(parts)


def _order(names: Sequence[str]) -> str:
    """Names in order, those that repeat once with their number."""
    parts: list[tuple[str, int]] = []
    for name in map(short_name, names):
        if parts and parts[-1][0] == name:
            parts[-1] = (name, parts[-1][1] + 1)
        else:
            parts.append((name, 1))
    return " → ".join(name if count == 1 else f"{count} × {name}" for name, count in parts)
