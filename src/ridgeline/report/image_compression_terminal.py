"""`ridgeline compress` of an image classifier, in the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from ridgeline import quantity
from ridgeline.records.image_compression import ImageLedger, ImageRow
from ridgeline.report.compression_terminal import few
from ridgeline.report.fitted_table import FittedTable

COLUMNS = (
    ("size", "smaller"),
    ("FLOPs", "fewer"),
    ("top-1", "change"),
    ("KL mean", "agreement"),
    ("latency", "faster"),
    ("", "95 %"),
)
"""One over the other; what is below is against the row above, KL and agreement from the first."""


def image_ledger_view(ledger: ImageLedger) -> RenderableType:
    """The rows, what was refused or saved, and how it was measured."""
    table = FittedTable(box=None, pad_edge=False)
    table.add_column("scheme\nagainst the row above", overflow="fold")
    for upper, lower in COLUMNS:
        table.add_column(f"{upper}\n{lower}", justify="right", no_wrap=True)
    for above, row in zip([None, *ledger.rows], ledger.rows, strict=False):
        table.add_row(Text(row.scheme, style="bold"), *_cells(row, above))
    parts: list[RenderableType] = [table, Text()]
    whole = [f"left whole: {line}" for row in ledger.rows[-1:] for line in row.left_whole]
    parts += [Text(line) for line in few(whole)]
    if ledger.refused:
        parts.append(Text(f"nothing was saved: {ledger.refused}", style="red"))
    for name, file in ledger.exports.items():
        parts.append(Text(f"{name}: {file}"))
    if ledger.saved is not None:
        parts.append(Text(f"saved: {ledger.saved}"))
    parts.append(Text(_protocol_line(ledger), style="dim"))
    return Group(*parts)


def _cells(row: ImageRow, above: ImageRow | None) -> list[str]:
    cells = [
        (
            quantity.memory(row.disk_bytes),
            "" if above is None else _ratio(above.disk_bytes, row.disk_bytes),
        ),
        (
            quantity.scaled(row.flops, "FLOP"),
            "" if above is None else _ratio(above.flops, row.flops),
        ),
        (
            f"{row.quality.accuracy:.2%}",
            "" if above is None else f"{row.quality.accuracy - above.quality.accuracy:+.2%}",
        ),
    ]
    far = row.divergence
    cells.append(("", "") if far is None else (f"{far.kl_mean:.4f}", f"{far.agreement:.2%}"))
    cells.append(("–" if row.latency is None else quantity.seconds(row.latency.seconds), ""))
    bounds = ""
    if row.speedup is not None:
        cells[-1] = (cells[-1][0], quantity.ratio(row.speedup.ratio))
        if row.speedup.ci_low is not None and row.speedup.ci_high is not None:
            bounds = quantity.interval(row.speedup.ci_low, row.speedup.ci_high)
    return [f"{upper}\n{lower}" for upper, lower in (*cells, ("", bounds))]


def _ratio(before: int, after: int) -> str:
    return quantity.ratio(before / max(1, after))


def _protocol_line(ledger: ImageLedger) -> str:
    one, timed = ledger.protocol, ledger.rows[0].latency
    chosen = f", {one.calibrated} others chose" if one.calibrated else ""
    speed = (
        ""
        if timed is None
        else f"; latency of {timed.batch} image, {timed.dtype}, {timed.threads} threads on"
        f" {timed.device}, in turns"
    )
    shape = " × ".join(str(size) for size in one.shape)
    return f"{one.images}: {one.judged} images of {shape}{chosen}{speed}"
