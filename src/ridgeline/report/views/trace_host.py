"""What `ridgeline trace sync` and `trace operators` show: the host's waits, and its operators."""

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
