"""What `ridgeline predict compression` shows: measured schemes, the best of them, foretold ones."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.records.compression_front import CompressionFront, ForetoldScheme, SchemePoint
from ridgeline.report import document as doc
from ridgeline.report.plots import LOOKS, Figure, limit_line, line, plain_text, plot_layout
from ridgeline.report.views.compress import faster

MB = 1e6
NOTE = (
    "Down and to the left is better. Full marks are measured, open diamonds are predictions. The"
    " dotted line joins what nothing beats in both; dashed: the loss that is allowed. In the table"
    " “beaten” is what another row beats in both, “too much” the best for its size at more loss."
)
FORETOLD_NOTE = (
    "A prediction starts from the measured scheme beside it: size by the bits of each weight, loss"
    " by the square of the step between levels. Where the same scheme was measured, that row was"
    " left out of it and stands below."
)
_KINDS = {"bits": "fewer bits", "zeros": "zeros", "smaller": "parts out"}
_SYMBOLS = {None: "star", "bits": "circle", "zeros": "square", "smaller": "triangle-up"}


def compression_front_document(found: CompressionFront) -> doc.ReportDocument:
    """The best within the loss that is allowed, every scheme, and how it was measured."""
    title = f"Compression of {found.model}"
    blocks: list[doc.Block] = [
        doc.Lead(title, front_sentence(found), "Compression"),
        doc.Only("page", doc.figure("front", front_figure(found), 440)),
        scheme_table(found),
    ]
    if found.foretold:
        blocks += [doc.Chapter("Predictions", [foretold_table(found)], FORETOLD_NOTE)]
    blocks += [doc.Lines(found.notes, "warning"), doc.Lines(source_lines(found))]
    return doc.ReportDocument(title, blocks)


def front_sentence(found: CompressionFront) -> str:
    """What is smallest within the loss that is allowed, and what stands in the way of more."""
    allowed = quantity.percent(found.most_rise)
    chosen = next((one for one in found.points if one.scheme == found.smallest_allowed), None)
    late = [one for one in found.points if not one.allowed]
    if chosen is None or chosen.kind is None:
        said = f"Nothing that was measured is smaller and within {allowed} of the perplexity"
    else:
        said = (
            f"Within {allowed} of the perplexity {chosen.scheme} is the smallest that was measured:"
            f" {quantity.ratio(chosen.smaller)} smaller at {quantity.change(chosen.rise, 2)}"
        )
    smaller = [one for one in late if chosen is None or one.disk_bytes < chosen.disk_bytes]
    if not smaller:
        return f"{said}; no measured scheme is smaller."
    next_one = min(smaller, key=lambda one: one.rise)
    return (
        f"{said}; the loss is what bounds it: the next, {next_one.scheme}, costs"
        f" {quantity.change(next_one.rise, 1)}."
    )


def front_figure(found: CompressionFront) -> Figure:
    """Schemes by size and perplexity."""
    best = sorted((one for one in found.points if one.best_for_its_size), key=_size)
    traces = [
        line(
            "best for their size", [_size(one) for one in best], [one.perplexity for one in best],
            "--limit", "", dash="dot", hoverinfo="skip",
        ),
        *(_marks(found, kind) for kind in _SYMBOLS if any(p.kind == kind for p in found.points)),
    ]  # fmt: skip
    if found.foretold:
        traces.append(_foretold_marks(found.foretold))
    layout = plot_layout("MB on disk", "perplexity per token")
    layout["xaxis"]["rangemode"] = "tozero"
    layout["yaxis"] |= {"type": "log", "dtick": "D1", "tickformat": ".3~s"}
    given = found.points[0].perplexity
    most = given * (1.0 + found.most_rise)
    layout["shapes"] = [limit_line(y=most)]
    return {"data": traces, "layout": layout}


def _size(one: SchemePoint | ForetoldScheme) -> float:
    return one.disk_bytes / MB


def _marks(found: CompressionFront, kind: str | None) -> Figure:
    shown = [one for one in found.points if one.kind == kind]
    color = LOOKS[list(_SYMBOLS).index(kind) % len(LOOKS)].color
    return line(
        "as given" if kind is None else _KINDS[kind],
        [_size(one) for one in shown],
        [one.perplexity for one in shown],
        color,
        "%{text}: perplexity %{y:.4g} at %{x:.3g} MB, measured",
        mode="markers",
        text=[plain_text(one.scheme) for one in shown],
        marker={"size": 11, "color": color, "symbol": _SYMBOLS[kind]},
    )


def _foretold_marks(foretold: list[ForetoldScheme]) -> Figure:
    return line(
        "predicted",
        [_size(one) for one in foretold],
        [one.perplexity for one in foretold],
        "--muted",
        "%{text}: perplexity %{y:.4g} at %{x:.3g} MB, predicted",
        mode="markers",
        text=[plain_text(one.scheme) for one in foretold],
        marker={"size": 14, "symbol": "diamond-open", "color": "--muted", "line": {"width": 2}},
    )


def scheme_table(found: CompressionFront) -> doc.DataTable:
    """Every measured scheme, the smallest first."""
    columns = (
        doc.words("scheme"),
        doc.words("kind", "what it does"),
        doc.Column("disk_bytes", "size"),
        *doc.figures("smaller", "zeros", "perplexity", "rise", "KL mean"),
        *doc.figures("reads less", "faster", "95 %"),
        doc.words("verdict"),
    )
    rows = [
        doc.TableRow(
            (
                one.scheme,
                None if one.kind is None else _KINDS[one.kind],
                one.disk_bytes,
                quantity.ratio(one.smaller),
                None if one.zeros is None else quantity.percent(one.zeros, 1),
                f"{one.perplexity:.3f}",
                quantity.change(one.rise, 2),
                quantity.digits(one.kl_mean),
                None if one.fewer_reads is None else quantity.ratio(one.fewer_reads),
                *faster(one.speedup),
                _verdict(one),
            ),
            "" if one.best_for_its_size else "dim",
        )
        for one in sorted(found.points, key=_size)
    ]
    return doc.DataTable(columns, rows)


def _verdict(one: SchemePoint) -> str:
    if not one.best_for_its_size:
        return "beaten"
    return "best" if one.allowed else "too much"


def foretold_table(found: CompressionFront) -> doc.DataTable:
    """Every prediction, and what was measured of the same scheme."""
    columns = (
        doc.words("scheme"),
        doc.words("basis", "computed from"),
        doc.Column("disk_bytes", "size"),
        *doc.figures("smaller", "perplexity", "rise", "KL mean", "reads less"),
    )
    rows: list[doc.TableRow] = []
    for one in found.foretold:
        rows.append(doc.TableRow((f"{one.scheme}, predicted", one.basis, *_figures(one))))
        if one.measured is not None:
            rows.append(doc.TableRow((f"{one.scheme}, measured", "", *_figures(one.measured))))
    return doc.DataTable(columns, rows)


def _figures(one: SchemePoint | ForetoldScheme) -> tuple[doc.Cell, ...]:
    return (
        float(one.disk_bytes),
        quantity.ratio(one.smaller),
        f"{one.perplexity:.3f}",
        quantity.change(one.rise, 2),
        quantity.digits(one.kl_mean),
        None if one.fewer_reads is None else quantity.ratio(one.fewer_reads),
    )


def source_lines(found: CompressionFront) -> list[str]:
    """How it was judged and measured."""
    how = found.protocol
    judged = (
        f"judged on {how.text}: {quantity.count(how.tokens)} tokens, context {how.context},"
        f" stride {how.stride}"
    )
    places = dict.fromkeys(
        f"measured on {one.machine}, torch {one.torch}, ridgeline {one.ridgeline}, {one.date[:10]}"
        for one in found.sources
    )
    commands = [one.command for one in found.sources[:1]]
    more = len(found.sources) - 1
    return [judged, *places, *commands, *([f"and {more} commands more, in --json"] if more else [])]
