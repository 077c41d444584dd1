"""Pictures of a stack of cures: the cost after each, and the table of them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline import quantity
from ridgeline.report import document as doc
from ridgeline.report.plots import LOOKS, Figure, labelled_bars

if TYPE_CHECKING:
    from ridgeline.cost.money import CureStack, RunCost


def cost_figure(found: CureStack) -> Figure:
    """What the run costs as it stood, and after each cure that is applied."""
    steps = [("as it stood", found.start), *((f"+ {one.name}", one.cost) for one in found.cures
                                            if one.applied)]  # fmt: skip
    sizes = [_size(cost) for _, cost in steps]
    return labelled_bars(
        [name for name, _ in steps],
        sizes,
        [_label(cost) for _, cost in steps],
        "hours" if found.start.usd is None else "USD",
        color=["--limit", *[LOOKS[1].color] * (len(steps) - 1)],
        pattern=["/", *[""] * (len(steps) - 1)],
        room=1.4,
    )


def cure_table(found: CureStack) -> doc.DataTable:
    """Every cure, on or off, with what is left after it."""
    columns = (
        doc.words("cure"),
        doc.Column("factor_ratio", "gain"),
        doc.Column("cumulative_ratio", "together"),
        doc.Column("step_seconds", "step"),
        doc.Column("run_hours", "run"),
        doc.Column("usd", "cost"),
    )
    rows = [doc.TableRow(("as it stood", None, *_cells(found.start)))]
    rows += [
        doc.TableRow(
            (one.name, one.factor, *_cells(one.cost))
            if one.applied
            else (f"{one.name} (off)", one.factor, None, None, None, None),
            "" if one.applied else "dim",
        )
        for one in found.cures
    ]
    return doc.DataTable(columns, rows)


def _cells(cost: RunCost) -> tuple[float, float, float, float | None]:
    return cost.cumulative, cost.step_seconds, cost.run_seconds / 3600.0, cost.usd


def _size(cost: RunCost) -> float:
    return cost.run_seconds / 3600.0 if cost.usd is None else cost.usd


def _label(cost: RunCost) -> str:
    return quantity.hours(cost.run_seconds) if cost.usd is None else quantity.usd(cost.usd)
