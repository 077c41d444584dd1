"""What `ridgeline predict stack` shows: a proved stack, row by row, with rows switched off."""

from __future__ import annotations

from pathlib import PurePath

from ridgeline import quantity
from ridgeline.records.measurement import script_of
from ridgeline.records.stack_forecast import StackForecast, StackPoint
from ridgeline.report import document as doc
from ridgeline.report.plots import LOOKS, Figure, bar_plot, bars, plain_text, rounded

NOTE = (
    "A multiplier was measured on top of the rows above it; whiskers are intervals at 95 %. With a"
    " row left out the rest is an estimate: only a measurement (ridgeline tune) makes it a row."
)


def stack_forecast_document(found: StackForecast) -> doc.ReportDocument:
    """The step after each row, and every row in figures."""
    title = f"The stack of {_script(found)}"
    drawn = doc.figure("steps", step_figure(found), step_height(found))
    return doc.ReportDocument(
        title,
        [
            doc.Lead(title, stack_sentence(found), found.machine),
            doc.Only("page", [doc.Chapter("Step time", drawn, NOTE)]),
            row_table(found),
            doc.Only("terminal", [doc.Paragraph(NOTE, "dim")]),
        ],
    )


def step_height(found: StackForecast) -> int:
    """A bar for each point that is drawn."""
    return 110 + 38 * len(found.rows)


def stack_sentence(found: StackForecast) -> str:
    """What the stack comes to, and which row is the largest part of it."""
    start, final = found.start, found.final
    if not found.largest:
        return f"Nothing is applied: a step takes {quantity.seconds(start.step_seconds)}."
    off = [row.technique for row in found.rows if not row.applied]
    how = "measured side by side" if found.measured else f"estimated, without {', '.join(off)}"
    money = ""
    if start.usd is not None and final.usd is not None:
        money = f", the run from {quantity.usd(start.usd)} to {quantity.usd(final.usd)}"
    elif start.run_seconds is not None and final.run_seconds is not None:
        before, after = quantity.hours(start.run_seconds), quantity.hours(final.run_seconds)
        money = f", the run from {before} to {after}"
    low, high = final.interval
    return (
        f"Together {quantity.ratio(final.cumulative)} [{quantity.digits(low)},"
        f" {quantity.digits(high)}], {how}: a step falls from"
        f" {quantity.seconds(start.step_seconds)} to {quantity.seconds(final.step_seconds)}{money};"
        f" the largest part is {found.largest}."
    )


def step_figure(found: StackForecast) -> Figure:
    """The step as it stood and after each row that is applied, with intervals."""
    points = [("as it stood", found.start)]
    points += [(f"+ {row.technique}", row.point) for row in found.rows if row.applied]
    steps = [1e3 * point.step_seconds for _, point in points]
    spans = [(step, *_span(point)) for step, (_, point) in zip(steps, points, strict=True)]
    trace = bars(
        [plain_text(name) for name, _ in points],
        steps,
        color=["--limit", *[LOOKS[1].color] * (len(points) - 1)],
        pattern=["/", *[""] * (len(points) - 1)],
        hover="%{y}: %{customdata}",
        customdata=[
            f"{quantity.seconds(point.step_seconds)}, {quantity.ratio(point.cumulative)} in all"
            for _, point in points
        ],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [rounded(high - step) for step, _, high in spans],
            "arrayminus": [rounded(step - low) for step, low, _ in spans],
            "color": "--text",
            "thickness": 1.5,
            "width": 4,
        },
    )
    return bar_plot([trace], "ms per step")


def row_table(found: StackForecast) -> doc.DataTable:
    """Every row, on or off, with what is left after it."""
    columns = (
        doc.words("technique"),
        doc.Column("multiplier_ratio", "multiplier"),
        doc.words("interval", "95 %"),
        doc.Column("cumulative_ratio", "together"),
        doc.words("range", "95 %", wide=True),
        doc.Column("step_seconds", "step"),
        doc.Column("memory_bytes", "memory"),
        doc.Column("run_hours", "run", wide=True),
        doc.Column("usd", "cost", wide=True),
    )
    rows = [doc.TableRow(("as it stood", None, None, *_cells(found.start)))]
    rows += [
        doc.TableRow(
            (
                row.technique if row.applied else f"{row.technique} (off)",
                row.multiplier,
                _bounds(row.interval),
                *(_cells(row.point) if row.applied else (None,) * 6),
            ),
            "" if row.applied else "dim",
        )
        for row in found.rows
    ]
    if found.measured:
        rows.append(doc.TableRow(("all, side by side", None, None, *_cells(found.final))))
    return doc.DataTable(columns, rows)


def _cells(point: StackPoint) -> tuple[doc.Cell, ...]:
    hours = None if point.run_seconds is None else point.run_seconds / 3600.0
    return (
        point.cumulative,
        _bounds(point.interval),
        point.step_seconds,
        point.peak_memory_bytes,
        hours,
        point.usd,
    )


def _bounds(interval: tuple[float, float]) -> str:
    low, high = interval
    return f"[{low:.2f}, {high:.2f}]"


def _span(point: StackPoint) -> tuple[float, float]:
    """The step's own bounds, in milliseconds, from those of the multiplier."""
    low, high = point.interval
    whole = 1e3 * point.step_seconds * point.cumulative
    return whole / high, whole / low


def _script(found: StackForecast) -> str:
    script = script_of(found.script)
    return PurePath(script).name if script is not None else " ".join(found.script[:2])
