"""Whether a format may be kept: wrong answers never, a drop only as far as was allowed."""

from __future__ import annotations

from msgspec.structs import replace

from ridgeline import quantity
from ridgeline.records.runtime_export import ExportRow


def judged(row: ExportRow, eager_top1: float | None, max_drop: float | None) -> ExportRow:
    """The row with its status.

    Args:
        row: Compared, case by case.
        eager_top1: Of the same inputs; None without labels.
        max_drop: The largest loss of top-1, or without labels the largest share of answers that
            differ; None: any that a rounding explains.
    """
    for one in row.likeness:
        if one.wrong:
            size = " × ".join(map(str, one.size))
            reason = f"at batch {one.batch}, {size}: {one.wrong}"
            return replace(row, status="differs", reason=reason)
    if not any(not one.fixed for one in row.likeness):
        return replace(row, status="failed", reason="it takes none of the sizes that were checked")
    if max_drop is None:
        return row
    if row.top1 is not None and eager_top1 is not None:
        what, drop = "top-1", eager_top1 - row.top1
    else:
        seen = [one.agreement for one in row.likeness if one.agreement is not None]
        what, drop = "agreement with eager float32", 1 - min(seen) if seen else 0.0
    if drop <= max_drop:
        return row
    fell = quantity.percent(drop, 2)
    return replace(
        row,
        status="dropped",
        reason=f"{what} fell by {fell}; --max-drop allows {quantity.percent(max_drop, 2)}",
    )
