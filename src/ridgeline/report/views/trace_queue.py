"""What `ridgeline trace queue` shows: how much launched work waits on each stream, over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ridgeline import quantity
from ridgeline.report import document as doc
from ridgeline.report.views.trace import ROWS, title

if TYPE_CHECKING:
    from ridgeline.trace.time.queue_length import RankQueues

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
