"""What `ridgeline trace copies` shows: copies by direction, their bandwidth, and it over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ridgeline import quantity
from ridgeline.report import document as doc
from ridgeline.report.views.trace import table_of, title

if TYPE_CHECKING:
    from ridgeline.trace.time.copies import CopySeries, RankCopies
    from ridgeline.trace.time.offload import Offload

COPIES = (
    doc.words("direction", "copies"),
    doc.words("memory", "host memory"),
    doc.Column("count"),
    doc.Column("bytes", "size"),
    doc.Column("total_us"),
    doc.Column("exposed_us"),
    doc.Column("mean_bytes_per_second", "mean"),
    doc.Column("p10_bytes_per_second", "p10"),
    doc.Column("median_bytes_per_second", "median"),
    doc.Column("p90_bytes_per_second", "p90"),
)
_HEIGHTS = " ▁▂▃▄▅▆▇█"


def copies_document(ranks: Sequence[RankCopies]) -> doc.ReportDocument:
    """Directions with their bandwidth, and the bandwidth over time, per GPU."""
    shown: list[doc.Block] = []
    for rank in ranks:
        if not rank.copies:
            shown.append(title(rank, "no copies"))
            continue
        exposed = sum(use.exposed_us for use in rank.copies)
        moved = quantity.memory(sum(use.bytes for use in rank.copies))
        said = f"{moved} in copies and fills; {quantity.microseconds(exposed)} of them exposed"
        shown += [title(rank, said), table_of(COPIES, rank.copies)]
        if rank.offload is not None:
            shown.append(doc.Paragraph(offload_sentence(rank.offload), "strong"))
        lines = [_sparkline(series) for series in rank.series if any(series.bytes_per_second)]
        shown.append(doc.Lines(lines, "dim"))
    return doc.ReportDocument("Copies", shown)


def offload_sentence(found: Offload) -> str:
    """What is moved out of the GPU's memory in every step."""
    out, back = map(quantity.memory, (found.out_bytes_per_step, found.in_bytes_per_step))
    exposed = quantity.microseconds(found.exposed_us)
    if found.way == "in":
        return f"Offload: {back} a step are streamed in (parameters); {exposed} exposed."
    return (
        f"Offload: {out} a step leave the GPU and {back} come in (activations, or gradients and "
        f"optimizer state); {exposed} exposed."
    )


def _sparkline(series: CopySeries) -> str:
    """The bandwidth of one direction over the window, in one line."""
    highest = max(series.bytes_per_second)
    bars = "".join(
        _HEIGHTS[-(-int(1000 * rate / highest) * (len(_HEIGHTS) - 1) // 1000)]
        for rate in series.bytes_per_second
    )
    return f"{series.direction} {bars} up to {quantity.shown('bytes_per_second', highest)}"
