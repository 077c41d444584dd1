"""Whether a format may be kept, and what the command ends with where some may not.

Wrong answers never are, a drop only as far as was allowed.
"""

from __future__ import annotations

from msgspec.structs import replace

from ridgeline import quantity
from ridgeline.errors import InputError, Regression, RidgelineError
from ridgeline.records.runtime_export import ExportRow, RuntimeExport


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


def failure_of(found: RuntimeExport) -> RidgelineError | None:
    """What the command ends with: every format that did not hold; None where all did.

    A wrong answer, or one that fell too far, is a regression, whatever else could not be written.
    """
    failed = [row for row in found.rows if row.status != "ok"]
    if not failed:
        return None
    formats: dict[str, list[str]] = {}
    for row in failed:
        formats.setdefault(_why(row), []).append(row.format)
    said = "; ".join(f"{', '.join(names)}{why}" for why, names in formats.items())
    if len(found.rows) > 2:
        said = f"{len(failed)} of {len(found.rows)} were not kept: {said}"
    return (InputError if all(row.status == "failed" for row in failed) else Regression)(said)


def _why(row: ExportRow) -> str:
    if row.status == "failed":
        return f": {row.reason}"
    return f" was not kept: {row.reason}{_stage(row)}"


def _stage(row: ExportRow) -> str:
    return (
        ""
        if row.wrong_stage is None
        else f"; the first layer that differs: {row.wrong_stage.layer}"
    )
