"""What `ridgeline trace steps` shows: every step of a few, quartiles and outliers of many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ridgeline import quantity
from ridgeline.report import document as doc
from ridgeline.report.views.trace import ROWS, table_of, title

if TYPE_CHECKING:
    from ridgeline.trace.time.steps import RankSteps, StepPhases

QUARTILES = (
    doc.words("name", "per step"),
    doc.Column("min_us"),
    doc.Column("lower_us", "25 %"),
    doc.Column("median_us"),
    doc.Column("upper_us", "75 %"),
    doc.Column("max_us"),
)


def steps_document(ranks: Sequence[RankSteps]) -> doc.ReportDocument:
    """Steps and their phases, per rank."""
    shown: list[doc.Block] = []
    for rank in ranks:
        if not rank.steps or rank.mean_us is None:
            said = "no ProfilerStep and no numbered iterations; call profiler.step() once per step"
            shown.append(title(rank, said))
            continue
        spread = f" ± {quantity.microseconds(rank.spread_us)}" if rank.spread_us is not None else ""
        many = f"{quantity.count(len(rank.steps))} steps from {rank.called}"
        shown.append(title(rank, f"{many}, {quantity.microseconds(rank.mean_us)}{spread} per step"))
        if len(rank.steps) <= ROWS:
            shown.append(_steps(rank.steps))
        else:
            shown += _many(rank)
    return doc.ReportDocument("Steps", shown)


def _many(rank: RankSteps) -> list[doc.Block]:
    """Quartiles of all steps, and those that stand out."""
    told = [one for one in rank.quartiles if one.max_us > 0]
    middle = rank.median_us or 0.0
    odd = sorted(
        (step for step in rank.steps if step.outlier),
        key=lambda step: -abs(step.length_us - middle),
    )
    if not odd:
        return [table_of(QUARTILES, told), doc.Paragraph("No step stands out.", "dim")]
    heading = f"{quantity.count(len(odd))} of them stand out"
    heading += f"; the {ROWS} furthest from the median" if len(odd) > ROWS else ""
    return [table_of(QUARTILES, told), doc.Chapter(heading, [_steps(odd[:ROWS])])]


def _steps(steps: Sequence[StepPhases]) -> doc.DataTable:
    phases = [phase for phase in steps[0].phases_us if any(step.phases_us[phase] for step in steps)]
    spoken = any(step.communication_exposed_us for step in steps)
    columns = (
        doc.Column("step"),
        doc.Column("length_us"),
        *(doc.Column("us", phase) for phase in phases),
        doc.Column("us", "GPU busy"),
        doc.Column("us", "exposed"),
        doc.words("remark", ""),
    )
    rows = [
        (
            str(step.number),
            step.length_us,
            *(step.phases_us[phase] for phase in phases),
            step.gpu_busy_us,
            step.communication_exposed_us if spoken else None,
            "outlier" if step.outlier else "" if step.whole else "no end",
        )
        for step in steps
    ]
    return doc.DataTable(columns, rows)
