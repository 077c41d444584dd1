"""What `ridgeline trace sync`, `operators` and `queue` show: waits, calls, and what they launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from ridgeline import quantity
from ridgeline.report import document as doc
from ridgeline.report.views.trace import OPERATORS, SYNC, table_of, title
from ridgeline.trace.kernel_names import short_name

if TYPE_CHECKING:
    from ridgeline.trace.time.operators import RankOperators
    from ridgeline.trace.time.sync import RankSync
from typing import TYPE_CHECKING

from ridgeline.report.views.trace import ROWS

if TYPE_CHECKING:
    from ridgeline.trace.time.queue_length import RankQueues


def sync_document(ranks: Sequence[RankSync]) -> doc.ReportDocument:
    """Waits of the host, per rank."""
    shown: list[doc.Block] = []
    for rank in ranks:
        blocked, idle = map(quantity.microseconds, (rank.host_us, rank.gpu_gap_us))
        said = f"{rank.count} waits block the host for {blocked}; GPU idle around them {idle}"
        shown.append(title(rank, said))
        shown += [table_of(SYNC, rank.points)] if rank.points else []
    return doc.ReportDocument("Synchronisation", shown)


def operators_document(ranks: Sequence[RankOperators]) -> doc.ReportDocument:
    """Operators per rank, with the shape or the line that they are grouped by."""
    shown: list[doc.Block] = []
    for rank in ranks:
        shown.append(title(rank, f"{quantity.count(rank.count)} operator calls"))
        if rank.by == "name":
            shown.append(table_of(OPERATORS, rank.operators))
            continue
        first, *others = OPERATORS
        rows = [
            (
                short_name(use.name),
                (_dims(use.shapes) if rank.by == "shape" else use.line) or "–",
                *(getattr(use, column.field) for column in others),
            )
            for use in rank.operators
        ]
        shown.append(doc.DataTable((first, doc.name(rank.by), *others), rows))
    return doc.ReportDocument("Operators", shown)


def _dims(shapes: str | None) -> str | None:
    """The shapes of an operator, `[[[8,4],[]],["float","Scalar"]]` as `8×4`."""
    if shapes is None:
        return None
    dims = msgspec.json.decode(shapes)[0]
    return ", ".join("×".join(map(str, dim)) for dim in dims if dim) or "scalars"


QUEUES = (
    doc.Column("stream"),
    doc.Column("launches"),
    doc.Column("mean_length", "mean"),
    doc.Column("max_length", "max"),
    doc.Column("full_share", "full"),
    doc.words("over_time"),
)
_BLOCKS = "▁▂▃▄▅▆▇█"
_TOGETHER = 4
"""Points of the series that one block of the row stands for."""


def queues_document(ranks: Sequence[RankQueues]) -> doc.ReportDocument:
    """The queue of each stream as a row of blocks, per GPU."""
    shown: list[doc.Block] = []
    for rank in ranks:
        if not rank.queues:
            shown.append(title(rank, "no launch in the trace belongs to a GPU event"))
            continue
        shown.append(title(rank, _fullness(rank)))
        rows = [
            (str(one.stream), one.launches, one.mean_length, one.max_length, one.full_share,
             _blocks(one.max_lengths))
            for one in rank.queues[:ROWS]
        ]  # fmt: skip
        shown.append(doc.DataTable(QUEUES, rows))
    note = "over time: the longest queue in each stretch, by the highest of its stream"
    return doc.ReportDocument("Queues", [*shown, doc.Paragraph(note, "dim")])


def _fullness(rank: RankQueues) -> str:
    shares = [queue.full_share for queue in rank.queues if queue.full_share is not None]
    if len(shares) < len(rank.queues):
        return (
            "more than 1,024 launches wait at a time: what this device's queue takes is not known"
        )
    if not any(shares):
        return "no queue is ever full (1,024 launches)"
    return f"{quantity.percent(max(shares))} of the time with a full queue (1,024 launches)"


def _blocks(lengths: Sequence[int]) -> str:
    highest = max(*lengths, 1)
    groups = [max(lengths[at : at + _TOGETHER]) for at in range(0, len(lengths), _TOGETHER)]
    return "".join(_BLOCKS[-(-length * (len(_BLOCKS) - 1) // highest)] for length in groups)
