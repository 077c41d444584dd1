"""Pictures of an all-reduce: who sends to whom in a step, what each rank then holds, how long."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ridgeline import quantity
from ridgeline.report import document as doc
from ridgeline.report.plots import LOOKS, Figure, bar_plot, bars, plot_layout, rounded

if TYPE_CHECKING:
    from ridgeline.cost.all_reduce_steps import AllReduceSteps

MOST_LABELS = 17
"""With more ranks than these, cells and dots carry no figures."""


def ring_figure(found: AllReduceSteps) -> Figure:
    """The ranks on a circle, and an arrow for everything that is sent in this step."""
    places = [_on_circle(rank, found.num_ranks) for rank in range(found.num_ranks)]
    layout = plot_layout("", "")
    for axis in ("xaxis", "yaxis"):
        layout[axis] = {"visible": False, "range": [-1.25, 1.25], "fixedrange": True}
    layout["yaxis"]["scaleanchor"] = "x"
    layout["annotations"] = [
        _arrow(places[sent.source], places[sent.target], adds=sent.adds) for sent in found.sends
    ]
    done = [min(held) == found.num_ranks for held in found.held]
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers+text",
        "x": [x for x, _ in places],
        "y": [y for _, y in places],
        "text": [str(rank) for rank in range(found.num_ranks)],
        "textfont": {"color": "#ffffff"},
        "marker": {
            "size": 26 if found.num_ranks < MOST_LABELS else 17,
            "color": ["--term-5" if one else LOOKS[1].color for one in done],
            "symbol": ["square" if one else "circle" for one in done],
        },
        "hovertemplate": "rank %{text}<extra></extra>",
        "showlegend": False,
    }
    return {"data": [trace], "layout": layout}


def held_figure(found: AllReduceSteps) -> Figure:
    """By rank and part, how many contributions the sum there holds."""
    names = [f"rank {rank}" for rank in range(found.num_ranks)]
    parts = [f"part {part}" for part in range(found.num_parts)]
    labelled = found.num_ranks < MOST_LABELS
    trace: dict[str, Any] = {
        "type": "heatmap",
        "x": parts,
        "y": names,
        "z": [list(held) for held in found.held],
        "zmin": 0,
        "zmax": found.num_ranks,
        "colorscale": [[0.0, "--card"], [0.5, LOOKS[0].color], [1.0, LOOKS[1].color]],
        "xgap": 1,
        "ygap": 1,
        "showscale": False,
        "hovertemplate": "%{y}, %{x}: the sum of %{z} ranks<extra></extra>",
    }
    if labelled:
        trace |= {"texttemplate": "%{z}"}
    layout = plot_layout("", "")
    layout["yaxis"] |= {"autorange": "reversed", "type": "category"}
    layout["xaxis"] |= {"type": "category", "showticklabels": labelled}
    return {"data": [trace], "layout": layout}


def duration_figure(found: AllReduceSteps) -> Figure:
    """How long each algorithm takes: what no bandwidth shortens, and the bytes."""
    names = [one.algorithm for one in found.totals]
    waited = [1e3 * one.latency_seconds for one in found.totals]
    moved = [1e3 * (one.seconds - one.latency_seconds) for one in found.totals]
    hover, blue = "%{x:.4g} ms", LOOKS[1].color
    traces = [
        bars(names, waited, name="latency of the steps", color=LOOKS[3].color, pattern="/",
             hover=hover),
        bars(names, moved, name="bytes on the slowest link", color=blue, hover=hover),
    ]  # fmt: skip
    return bar_plot(traces, "ms")


def algorithm_table(found: AllReduceSteps) -> doc.DataTable:
    """Every algorithm in figures."""
    columns = (
        doc.words("algorithm"),
        doc.Column("num_steps", "steps"),
        doc.Column("seconds", "time"),
        doc.Column("latency_seconds", "of it latency"),
        doc.Column("sent_bytes", "sent by a rank"),
        doc.Column("network_bytes", "over the network"),
    )
    rows = [
        (doc.Phrase(one.algorithm, "strong" if one.algorithm == found.algorithm else ""),
         one.num_steps, one.seconds, one.latency_seconds, one.sent_bytes, one.network_bytes)
        for one in found.totals
    ]  # fmt: skip
    return doc.DataTable(columns, rows)


def step_words(found: AllReduceSteps) -> str:
    """What happens in the step that is looked at."""
    if not found.at_step:
        return "Before the first step every rank holds its own contribution alone."
    step = found.steps[found.at_step - 1]
    where = "over the network" if step.crosses else "inside the fast domains"
    return (
        f"Step {found.at_step} of {len(found.steps)}, {step.phase}: a rank sends"
        f" {quantity.memory(step.sent_bytes)} {where} in {quantity.seconds(step.seconds)};"
        f" {quantity.seconds(found.elapsed_seconds)} are gone."
    )


def _on_circle(rank: int, num_ranks: int) -> tuple[float, float]:
    turn = 2.0 * math.pi * rank / num_ranks
    return rounded(math.sin(turn)), rounded(math.cos(turn))


def _arrow(start: tuple[float, float], end: tuple[float, float], *, adds: bool) -> Figure:
    """From one dot to another, a little short of both; green where whole sums are handed on."""
    (ax, ay), (x, y) = start, end
    length = math.hypot(x - ax, y - ay) or 1.0
    short = 0.13 / length
    return {
        "x": rounded(x - short * (x - ax)), "y": rounded(y - short * (y - ay)),
        "ax": rounded(ax + short * (x - ax)), "ay": rounded(ay + short * (y - ay)),
        "xref": "x", "yref": "y", "axref": "x", "ayref": "y", "text": "",
        "showarrow": True, "arrowhead": 2, "arrowsize": 1.2, "arrowwidth": 2,
        "arrowcolor": "--term-4" if adds else "--term-5",
    }  # fmt: skip
