"""Pictures of number formats: how far each reaches, and which numbers it has near a value."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ridgeline import quantity
from ridgeline.report import document as doc
from ridgeline.report.plots import LOOKS, Figure, bar_plot, bars, limit_line, plot_layout

if TYPE_CHECKING:
    from ridgeline.cost.number_line import NumberLine, RoundedNumber


def range_figure(found: NumberLine) -> Figure:
    """From the smallest number above 0 to the largest, each format a bar over powers of ten."""
    formats = found.formats
    names = [one.format for one in formats]
    low = [math.log10(one.smallest) for one in formats]
    normal = [math.log10(one.smallest_normal) for one in formats]
    high = [math.log10(one.largest) for one in formats]
    hover = [
        f"{one.format}: {_short(one.smallest)} to {_short(one.largest)},"
        f" {one.decades:.1f} powers of ten"
        for one in formats
    ]
    parts = [
        ("subnormal", low, normal, LOOKS[0].color, "/"),
        ("normal", normal, high, LOOKS[1].color, ""),
    ]
    traces: list[Figure] = [
        bars(
            names,
            [end - start for start, end in zip(starts, ends, strict=True)],
            name=name,
            color=color,
            pattern=pattern,
            hover="%{text}<extra></extra>",
            base=starts,
            text=hover,
            textposition="none",
        )
        for name, starts, ends, color, pattern in parts
    ]
    shapes = [_mark(math.log10(abs(found.value)))] if found.value else []
    return bar_plot(traces, "power of ten", barmode="overlay", bargap=0.3, shapes=shapes)


def neighbour_figure(found: NumberLine) -> Figure:
    """Every number of each format in the window; a bar where they are too many to be told apart."""
    traces: list[Figure] = []
    for place, one in enumerate(found.formats):
        if one.values:
            traces.append(_strokes(one))
        else:
            traces.append(_dense(found, one))
        traces.append(_nearest(one, first=place == 0))
    layout = plot_layout("value", "")
    layout["barmode"] = "overlay"
    layout["yaxis"] |= {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": [one.format for one in reversed(found.formats)],
    }
    layout["xaxis"] |= {"range": [found.low, found.high]}
    layout["shapes"] = [_mark(found.value)]
    return {"data": traces, "layout": layout}


def format_table(found: NumberLine) -> doc.DataTable:
    """A table of what each format makes of the value."""
    columns = (
        doc.words("format"),
        doc.Column("bits"),
        doc.words("rounded", "becomes"),
        doc.words("error", "off by"),
        doc.words("step", "step there"),
        doc.words("up", "stochastic: up"),
        doc.words("smallest"),
        doc.words("largest"),
    )
    rows = [
        (
            doc.Phrase(one.format, "strong"),
            one.bits,
            rounded_words(one),
            "–" if one.relative_error is None else quantity.percent(one.relative_error),
            _short(one.step),
            quantity.percent(one.share_up),
            _short(one.smallest),
            _short(one.largest),
        )
        for one in found.formats
    ]
    return doc.DataTable(columns, rows)


def rounded_words(one: RoundedNumber) -> doc.Words:
    """What a value becomes, and whether that is for want of range."""
    if one.rounded is None:
        return doc.Phrase("infinity", "bad")
    text = f"{one.rounded:.7g}"
    return doc.Phrase(f"{text} (cut)", "warning") if one.overflows else text


def _strokes(one: RoundedNumber) -> Figure:
    """A stroke for each number of the window."""
    return {
        "type": "scatter",
        "mode": "markers",
        "x": list(one.values),
        "y": [one.format] * len(one.values),
        "marker": {
            "symbol": "line-ns-open",
            "size": 15,
            "color": LOOKS[1].color,
            "line": {"width": 2, "color": LOOKS[1].color},
        },
        "showlegend": False,
        "hovertemplate": f"{one.format}: " + "%{x:.6g}<extra></extra>",
    }


def _dense(found: NumberLine, one: RoundedNumber) -> Figure:
    """So many numbers that they look like a line."""
    start, end = max(found.low, -one.largest), min(found.high, one.largest)
    return bars(
        [one.format],
        [max(0.0, end - start)],
        color=LOOKS[0].color,
        hover=f"{one.format}: %{{text}} here",
        base=[start],
        width=[0.34],
        opacity=0.55,
        text=[f"{quantity.count(one.values_in_window)} numbers"],
        textposition="none",
    )


def _nearest(one: RoundedNumber, *, first: bool) -> Figure:
    shown = one.rounded is not None
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "what the value becomes",
        "x": [one.rounded] if shown else [],
        "y": [one.format] if shown else [],
        "marker": {"symbol": "diamond", "size": 12, "color": "--communication",
                   "line": {"width": 1, "color": "--card"}},
        "showlegend": first,
        "hovertemplate": f"{one.format}: " + "%{x:.7g}<extra></extra>",
    }  # fmt: skip


def _mark(x: float) -> Figure:
    return limit_line(x=x, width=1.5)


def _short(value: float) -> str:
    return f"{value:.3g}"
