"""What `ridgeline compress` shows of language models."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ridgeline import quantity
from ridgeline.records.compression import (
    Chosen,
    CompressionLedger,
    CompressionRow,
    LayerSpread,
    Search,
    Speedup,
    StageTraining,
    Zeros,
)
from ridgeline.report import document as doc
from ridgeline.report.plots import Figure, line, plot_layout, rounded
from ridgeline.report.views.doctor import environment_section
from ridgeline.report.views.evaluate import outlier_lines, protocol_line

PARETO_NOTE = (
    "Down and to the left is better. The line joins the rows that no other row beats in both;"
    " a row above it paid for nothing."
)
SPEED_NOTE = "Down and to the right is better; all rows decoded in turns, batch 1."
LAYERS_NOTE = "What each layer cost when it alone was compressed by the scheme chosen for it."
SPREAD_NOTE = (
    "Each row is a matrix, each column a size of weight in its root mean squares: pruned weights"
    " are a bright middle, few levels are stripes, outliers fill the edges."
)
COLUMNS = (
    doc.words("scheme"),
    doc.Column("disk_bytes", "size"),
    *doc.figures("smaller", "zeros", "perplexity", "rise", "accuracy", "KL mean", "KL p99"),
    *doc.figures("tokens/s", "faster", "95 %"),
)
"""Each ratio and rise is against the row above."""
MOST_NOTICES = 5
MOST_LABELS = 40
"""Names beside the rows of a map: more cannot be read."""


def compression_document(ledger: CompressionLedger) -> doc.ReportDocument:
    """The rows, what was refused or saved, and how it was measured."""
    protocol = "" if ledger.protocol is None else protocol_line(ledger.protocol)
    notices = [notice for row in ledger.rows for notice in row.notices]
    table = doc.DataTable(COLUMNS, pairwise(_row, ledger.rows))
    shown: list[doc.Block] = [
        doc.Lead(ledger.model, protocol, "Compression"),
        doc.Values(_headline_figures(ledger)),
        doc.Only("page", _fronts(ledger)),
        doc.Chapter("Ledger", [table], "Ratios and rises: against the row above."),
        doc.Lines(_remarks(ledger)),
        doc.Only("page", [doc.Lines(notices, "warning")]),
        doc.Only("terminal", [doc.Lines(few(notices), "warning")]),
    ]
    if ledger.search is not None:
        shown.append(_search(ledger.search))
    shown.append(doc.Only("page", _spreads(ledger)))
    if ledger.refused:
        shown.append(doc.Paragraph(f"nothing was saved: {ledger.refused}", "bad"))
        shown.append(doc.Lines(_sensitive(ledger)))
    changed = ledger.rows[-1].scheme != "as given"  # else there are exports alone, no model
    serve = f"; serve it: ridgeline serve {ledger.saved}" if changed else ""
    shown.append(doc.Only("terminal", [doc.Lines(_written(ledger, serve))]))
    shown.append(doc.Only("page", [environment_section(ledger.environment)]))
    return doc.ReportDocument(f"Compression of {ledger.model}", shown)


def pairwise(
    row: Callable[..., tuple[doc.Cell, ...]], rows: Sequence[object]
) -> list[tuple[doc.Cell, ...]]:
    """Each row with the one above it."""
    return [row(one, above) for above, one in zip([None, *rows], rows, strict=False)]


def _written(ledger: CompressionLedger, serve: str = "") -> list[str]:
    lines = [f"{name}: {file}" for name, file in ledger.exports.items()]
    return lines + ([f"saved: {ledger.saved}{serve}"] if ledger.saved is not None else [])


def few(texts: Sequence[str]) -> list[str]:
    """The first ones, and how many more there are."""
    left = len(texts) - MOST_NOTICES
    return [*texts[:MOST_NOTICES], *([f"and {left} more notices"] if left > 0 else [])]


def _headline_figures(ledger: CompressionLedger) -> list[tuple[str, doc.Words]]:
    first, last = ledger.rows[0], ledger.rows[-1]
    shown: list[tuple[str, doc.Words]] = [("smaller", fewer(first.disk_bytes, last.disk_bytes))]
    if first.quality is not None and last.quality is not None:
        rise = last.quality.perplexity / first.quality.perplexity - 1
        shown.append(("perplexity", quantity.change(rise, 2)))
    if last.divergence is not None:
        shown.append(("KL, mean", quantity.digits(last.divergence.kl_mean)))
    if first.decoding is not None and last.decoding is not None:
        speed = last.decoding.tokens_per_second / first.decoding.tokens_per_second
        shown.append(("tokens/s", quantity.ratio(speed)))
    return shown


# -- rows ------------------------------------------------------------------------------------------


def _row(row: CompressionRow, above: CompressionRow | None) -> tuple[doc.Cell, ...]:
    own, before = row.quality, None if above is None else above.quality
    rise = "" if own is None or before is None else own.perplexity / before.perplexity - 1
    far, speed = row.divergence, row.decoding
    return (
        row.scheme,
        row.disk_bytes,
        "" if above is None else fewer(above.disk_bytes, row.disk_bytes),
        None if row.zeros is None else quantity.percent(row.zeros.share_of_matrices, 1),
        None if own is None else f"{own.perplexity:.3f}",
        quantity.change(rise, 2) if isinstance(rise, float) else rise,
        None if own is None else quantity.percent(own.accuracy, 2),
        "" if far is None else quantity.digits(far.kl_mean),
        "" if far is None else quantity.digits(far.kl_p99),
        None if speed is None else quantity.digits(speed.tokens_per_second),
        *faster(row.speedup),
    )


def fewer(before: int, after: int) -> str:
    """How many times less is left."""
    return quantity.ratio(before / max(1, after))


def faster(one: Speedup | None) -> tuple[str, str]:
    """The ratio of a speed-up and its interval, in words."""
    if one is None:
        return "", ""
    return quantity.ratio(one.ratio), quantity.interval(one.ci_low, one.ci_high)


# -- remarks ---------------------------------------------------------------------------------------


def _remarks(ledger: CompressionLedger) -> list[str]:
    lines = []
    for row in ledger.rows:
        said = [
            *_trained(row.training),
            row.calibrated_in and f"calibrated in {row.calibrated_in}",
            row.remark,
            *_zeros(row.zeros),
            *outlier_lines(row.outliers),
        ]
        lines += [f"{row.scheme}: {one}" for one in said if one]
    return lines


def _zeros(zeros: Zeros | None) -> list[str]:
    if zeros is None or not zeros.two_of_four:
        return []
    share = f"{quantity.percent(zeros.share_of_all, 1)} of all parameters are zero"
    return [f"2:4 in {zeros.two_of_four} of {zeros.matrices} matrices; {share}"]


def _trained(run: StageTraining | None) -> list[str]:
    if run is None:
        return []
    parts = [f"trained for {run.steps:,} steps, {run.tokens:,} tokens"]
    if run.final_loss is not None:
        parts.append(f"loss {run.final_loss:.4f}")
    if run.validation_loss is not None:
        parts.append(f"held out {run.validation_loss:.4f}")
    return [f"{', '.join(parts)}, in {quantity.seconds(run.seconds)}"]


def _sensitive(ledger: CompressionLedger) -> list[str]:
    """The layers that cost most."""
    if not ledger.sensitive:
        return []
    named = [f"{one.layer} (KL {quantity.digits(one.kl)})" for one in ledger.sensitive]
    return [f"most sensitive, each compressed alone: {', '.join(named)}"]


def _search(found: Search) -> doc.Chapter:
    """How the combination was found, and the scheme of each layer."""
    measured = f"{len(found.sensitivities)} sensitivities, {len(found.attempts)} combinations"
    lines = [f"{found.target} for {found.aim}: {measured} measured"]
    for one in found.attempts:
        cost = quantity.memory(one.cost) if found.aim == "size" else quantity.seconds(one.cost)
        lines.append(
            f"  {cost}: KL {quantity.digits(one.kl)}, {quantity.digits(one.predicted_kl)} by the"
            f" sum of its layers; {'held' if one.allowed else 'too much'}"
        )
    chosen = [(one.layer, one.scheme, quantity.digits(one.kl)) for one in found.chosen]
    table = doc.DataTable((doc.words("layer"), doc.words("scheme"), doc.Column("KL alone")), chosen)
    plot = doc.figure("layers", layers_figure(found.chosen), 380)
    return doc.Chapter(
        "Layer by layer", [doc.Lines(lines), *plot, doc.Only("page", [table])], LAYERS_NOTE
    )


# -- plots -----------------------------------------------------------------------------------------


def _fronts(ledger: CompressionLedger) -> list[doc.Block]:
    fronts = {
        "Size against perplexity": (PARETO_NOTE, "size", size_figure(ledger)),
        "Speed against perplexity": (SPEED_NOTE, "speed", speed_figure(ledger)),
    }
    return [
        doc.Chapter(title, doc.figure(name, plot, 380), note)
        for title, (note, name, plot) in fronts.items()
        if plot is not None
    ]


def _spreads(ledger: CompressionLedger) -> list[doc.Block]:
    """The weights of each matrix, as given and as saved."""
    both = (
        ("Weights as given", "spreads-before", ledger.spreads_before),
        ("Weights as saved", "spreads", ledger.spreads),
    )
    return [
        doc.Chapter(title, doc.figure(name, spread_figure(spreads), 420), SPREAD_NOTE)
        for title, name, spreads in both
        if spreads
    ]


def spread_figure(spreads: Sequence[LayerSpread]) -> Figure:
    """Histograms of weights as rows of a map; the shares' roots are drawn, so that tails show."""
    count = len(spreads[0].shares)
    layout = plot_layout("weight, in root mean squares", "")
    layout["yaxis"] |= {"showticklabels": len(spreads) <= MOST_LABELS, "autorange": "reversed"}
    shown = {
        "type": "heatmap",
        "x": [(place - count // 2) / 4 for place in range(count)],
        "y": [one.layer for one in spreads],
        "z": [[rounded(share**0.5) for share in one.shares] for one in spreads],
        "customdata": [[rounded(share) for share in one.shares] for one in spreads],
        "colorscale": "Viridis",
        "showscale": False,
        "hovertemplate": "%{y}: %{customdata:.2%} at %{x}<extra></extra>",
    }
    return {"data": [shown], "layout": layout}


def size_figure(ledger: CompressionLedger) -> Figure | None:
    """Rows by megabytes and perplexity."""
    return _pareto(ledger.rows, "MB on disk", lambda row: row.disk_bytes / 1e6, more=False)


def speed_figure(ledger: CompressionLedger) -> Figure | None:
    """Rows by tokens per second and perplexity; None where decoding was not measured."""

    def speed(row: CompressionRow) -> float | None:
        return None if row.decoding is None else row.decoding.tokens_per_second

    return _pareto(ledger.rows, "tokens/s", speed, more=True)


def _pareto(
    rows: Sequence[CompressionRow],
    x_title: str,
    along: Callable[[CompressionRow], float | None],
    *,
    more: bool,
) -> Figure | None:
    points = [
        (x, row.quality.perplexity, row.scheme)
        for row in rows
        if row.quality is not None and (x := along(row)) is not None
    ]
    if len(points) < 2:
        return None
    best = front([(x, y) for x, y, _ in points], more=more)
    layout = plot_layout(x_title, "perplexity per token")
    layout["xaxis"]["rangemode"] = "tozero"
    ends = [points[place][0] for place in best], [points[place][1] for place in best]
    traces = [
        line("best for its loss", *ends, "--limit", "", dash="dot", hoverinfo="skip"),
        line(
            "rows",
            [x for x, _, _ in points],
            [y for _, y, _ in points],
            "--accent",
            "%{text}: %{y:.4g} at %{x:.4g}",
            mode="markers+text",
            text=[name for _, _, name in points],
            textposition="top center",
            marker={
                "size": 11,
                "color": "--accent",
                "symbol": [
                    "circle" if place in best else "circle-open" for place in range(len(points))
                ],
            },
        ),
    ]
    return {"data": traces, "layout": layout}


def front(points: Sequence[tuple[float, float]], *, more: bool) -> list[int]:
    """The places of those that no other beats in both, from small x to large.

    Args:
        points: (x, loss); a smaller loss is better.
        more: Whether a larger x is better, or a smaller one.

    >>> front([(4, 10.0), (1, 11.0), (2, 12.0)], more=False)
    [1, 0]
    """
    sign = -1 if more else 1
    kept: list[int] = []
    for place in sorted(range(len(points)), key=lambda at: (sign * points[at][0], points[at][1])):
        if not kept or points[place][1] < points[kept[-1]][1]:
            kept.append(place)
    return kept[::-1] if more else kept


def layers_figure(chosen: Sequence[Chosen]) -> Figure | None:
    """Sensitivities in the order of the layers, a colour per scheme."""
    schemes = sorted({one.scheme for one in chosen})
    colors = ("--accent", "--communication", "--optimizer", "--forward", "--backward", "--muted")
    traces = [
        {
            "type": "bar",
            "name": scheme,
            "x": [one.layer for one in chosen if one.scheme == scheme],
            "y": [rounded(one.kl) for one in chosen if one.scheme == scheme],
            "marker": {"color": colors[place % len(colors)]},
            "hovertemplate": "%{x}: KL %{y:.3g}<extra></extra>",
        }
        for place, scheme in enumerate(schemes)
    ]
    if not traces:
        return None
    layout = plot_layout("", "KL, nats per token")
    layout["xaxis"] |= {
        "showticklabels": False,
        "categoryorder": "array",
        "categoryarray": [one.layer for one in chosen],
    }
    return {"data": traces, "layout": layout}
