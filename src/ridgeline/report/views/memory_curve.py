"""What `ridgeline predict memory` shows: memory over a step, by category."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.records.memory_curve import MemoryCurve, MemoryMoment
from ridgeline.report import document as doc
from ridgeline.report.plots import Figure, limit_line, looks, plot_layout, rounded, shade
from ridgeline.report.views.layout_names import layout_name, plain_term
from ridgeline.report.views.predict_training import VERDICTS

ORDER = (
    "buffers", "weights", "master", "optimizer", "gathered", "gradients",
    "activations", "recompute", "logits", "update", "slack",
)  # fmt: skip
"""The order from below: what stays, then what comes and goes."""
PATTERNS = ("", "/", "\\", "x", "-", "|", "+", ".", "", "/", "x")
"""A fill for each category beside its colour."""


def memory_curve_document(found: MemoryCurve) -> doc.ReportDocument:
    """The curve, its peak by category, and what other ways to keep activations come to."""
    title = f"{found.model} on {found.cluster}"
    pairs: list[tuple[str, doc.Words]] = [
        ("peak", quantity.memory(found.peak.total_bytes)),
        ("device", quantity.memory(found.capacity_bytes)),
        ("in the", found.peak.phase),
        ("most of it", plain_term(found.largest_term)),
    ]
    lead = doc.Lead(
        title=f"{quantity.memory(found.peak.total_bytes)} at the peak",
        subtitle=f"{layout_name(found.layout)}, checkpoints {found.checkpoint}",
        origin=doc.Phrase(title, "strong"),
        chip=VERDICTS[found.verdict],
    )
    drawn = doc.Chapter("Over the step", doc.figure("curve", curve_figure(found), 420), NOTE)
    shown: list[doc.Block] = [lead, doc.Values(pairs), doc.Only("page", [drawn])]
    shown += [doc.Chapter("At the peak", [peak_table(found)])]
    shown += [doc.Chapter("Other checkpoints", [checkpoint_table(found)])]
    shown += [doc.Chapter("Assumed, not measured or given", [doc.Lines(found.assumed)])]
    return doc.ReportDocument(title, shown)


NOTE = (
    "The last micro-batch of a step and the optimizer. What stays lies below, what comes and goes"
    " above; the dashed line is what the device has."
)


def curve_figure(found: MemoryCurve) -> Figure:
    """Categories stacked over time."""
    terms = [one for one in ORDER if any(one in moment.terms for moment in found.moments)]
    chosen = looks(terms)
    times = [rounded(1e3 * moment.seconds) for moment in found.moments]
    traces: list[Figure] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": plain_term(name),
            "stackgroup": "memory",
            "x": times,
            "y": [rounded(moment.terms.get(name, 0.0) / 1e9) for moment in found.moments],
            "line": {"width": 0.8, "color": chosen[name].color},
            "fillcolor": chosen[name].color,
            "fillpattern": {
                "shape": PATTERNS[ORDER.index(name)],
                "bgcolor": chosen[name].color,
                "fgcolor": "--card",
                "size": 7,
                "solidity": 0.16,
            },
            "hovertemplate": "%{y:.3g} GB<extra>" + plain_term(name) + "</extra>",
        }
        for name in terms
    ]
    layout = plot_layout("ms since the forward pass began", "GB")
    layout["hovermode"] = "x unified"
    layout["yaxis"]["rangemode"] = "tozero"
    capacity = rounded(found.capacity_bytes / 1e9)
    layout["shapes"] = [
        *_phases(found.moments),
        limit_line(y=capacity, color="--bad", width=2.5),
    ]
    layout["annotations"] = [
        {
            "xref": "paper", "x": 1, "y": capacity, "yanchor": "bottom", "xanchor": "right",
            "text": f"out of memory above {quantity.memory(found.capacity_bytes)}",
            "showarrow": False, "font": {"color": "--bad"},
        },
    ]  # fmt: skip
    return {"data": traces, "layout": layout}


def _phases(moments: list[MemoryMoment]) -> list[Figure]:
    """A shade from the first moment of each phase to the first of the next."""
    starts = {moment.phase: moment.seconds for moment in reversed(moments)}
    ordered = sorted(starts.items(), key=lambda pair: pair[1])
    ends = [*(seconds for _, seconds in ordered[1:]), moments[-1].seconds]
    return [
        shade(rounded(1e3 * start), rounded(1e3 * end), f"--{phase}", 0.12)
        for (phase, start), end in zip(ordered, ends, strict=True)
    ]


def peak_table(found: MemoryCurve) -> doc.DataTable:
    """What is alive at the peak, the largest first."""
    terms = sorted(found.peak.terms.items(), key=lambda pair: -pair[1])
    chosen = looks([one for one in ORDER if one in found.peak.terms])
    columns = (
        doc.words("for"),
        doc.words("bar", ""),
        doc.Column("bytes", "memory"),
        doc.Column("share"),
    )
    rows = [
        (doc.Key(plain_term(name), chosen[name]), doc.Meter(size / terms[0][1], chosen[name]),
         size, size / found.peak.total_bytes)
        for name, size in terms
    ]  # fmt: skip
    return doc.DataTable(columns, rows)


def checkpoint_table(found: MemoryCurve) -> doc.DataTable:
    """Every way to keep activations: its peak, and the time that it takes."""
    columns = (
        doc.words("checkpoint", "checkpoints"),
        doc.Column("peak_bytes", "peak"),
        doc.words("verdict", ""),
        doc.Column("activation_bytes", "activations"),
        doc.Column("freed", ""),
        doc.Column("pass_ratio", "forward and backward"),
        doc.Column("seconds", "with optimizer"),
    )
    rows = [
        (doc.Phrase(one.checkpoint, "strong" if one.checkpoint == found.checkpoint else ""),
         one.peak_bytes, VERDICTS[one.verdict], one.activation_bytes,
         f"1/{one.activations_freed:.3g}", quantity.ratio(one.pass_ratio), one.seconds)
        for one in found.others
    ]  # fmt: skip
    return doc.DataTable(columns, rows)
