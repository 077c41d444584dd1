"""Plots as plain data for plotly.js, from which the views make theirs: layout, lines, bars.

Colours are names of the style sheet's variables (`--forward`); the page's script puts in their
values, so that the plots follow the reader's light or dark scheme. Pictures must also read without
colours, as in a terminal, so every look has a fill of its own; a term that has no look of its own
takes the next free one, so that nothing is left out of a picture because it is new.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Look:
    """The look of one term."""

    color: str
    """A variable of the style sheet."""
    terminal: str
    """The colour in a terminal."""
    fill: str
    """The character in a terminal: the picture must also read without colours."""


PHASES = {
    "data": Look("--data", "yellow", "d"),
    "copy": Look("--copy", "bright_yellow", "c"),
    "forward": Look("--forward", "cyan", "f"),
    "backward": Look("--backward", "blue", "b"),
    "optimizer": Look("--optimizer", "magenta", "o"),
    "communication": Look("--communication", "red", "x"),
    "other": Look("--other", "bright_black", "·"),
}
"""Phase of a step → its look: the letter is the phase's first where it is free."""
MEMORY = {
    "weights": Look("--weights", "cyan", "█"),
    "gradients": Look("--gradients", "blue", "▓"),
    "optimizer": Look("--optimizer", "magenta", "▒"),
    "activations": Look("--activations", "yellow", "░"),
    "other": Look("--other", "bright_black", "·"),
}
"""Kind of bytes at a measured peak → its look."""
LOOKS = tuple(
    Look(f"--term-{index}", terminal, fill)
    for index, (terminal, fill) in enumerate(
        (
            ("cyan", "█"),
            ("blue", "▓"),
            ("magenta", "▒"),
            ("yellow", "░"),
            ("red", "▚"),
            ("green", "▞"),
            ("bright_yellow", "╬"),
            ("bright_magenta", "◆"),
            ("bright_blue", "■"),
            ("bright_red", "▪"),
            ("bright_cyan", "◼"),
            ("bright_black", "·"),
        )
    )
)
"""The looks that terms of estimates are given."""
OWN = {
    **dict.fromkeys(("weights", "gemm"), 0),
    **dict.fromkeys(("gradients", "attention"), 1),
    "optimizer": 2,
    **dict.fromkeys(("activations", "elementwise"), 3),
    "logits": 4,
    **dict.fromkeys(("recompute", "kv_cache"), 5),
    **dict.fromkeys(("gathered", "tensor"), 6),
    "data": 7,
    **dict.fromkeys(("master", "expert"), 8),
    **dict.fromkeys(("slack", "shards"), 9),
    **dict.fromkeys(("buffers", "pipeline"), 10),
    **dict.fromkeys(("other", "bubble", "disk", "update"), 11),
}
"""Term of a step or of memory → number of its look; the two never share a picture."""


def looks(terms: Iterable[str]) -> dict[str, Look]:
    """The look of each term; free looks are given out in order, and again when all are taken.

    >>> looks(["weights", "new thing"])["new thing"].color
    '--term-1'
    """
    names = list(dict.fromkeys(terms))
    taken = {OWN[name] for name in names if name in OWN}
    free = [index for index in range(len(LOOKS)) if index not in taken] or [0]
    chosen: dict[str, Look] = {}
    given = 0
    for name in names:
        if name in OWN:
            chosen[name] = LOOKS[OWN[name]]
        else:
            chosen[name] = LOOKS[free[given % len(free)]]
            given += 1
    return chosen


Figure = dict[str, Any]
"""A plot as plotly.js takes it, `{"data": […], "layout": {…}}`."""


def plot_layout(x_title: str, y_title: str) -> Figure:
    """Axes, margins and colours of every plot."""
    axis = {"gridcolor": "--line", "linecolor": "--line", "zeroline": False, "automargin": True}
    return {
        "xaxis": {**axis, "title": {"text": x_title, "standoff": 8}},
        "yaxis": {**axis, "title": {"text": y_title, "standoff": 8}},
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
        "legend": {
            "orientation": "h",
            "traceorder": "normal",
            "x": 0,
            "y": 1.02,
            "yanchor": "bottom",
        },
        "hovermode": "x unified" if y_title == "loss" else "closest",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "--text", "size": 12},
        "modebar": {
            "bgcolor": "rgba(0,0,0,0)",
            "color": "--muted",
            "activecolor": "--accent",
        },
        "hoverlabel": {"bgcolor": "--card", "bordercolor": "--line", "font": {"color": "--text"}},
    }


def line(
    name: str,
    x: Sequence[float],
    y: Sequence[float | None],
    color: str,
    hover: str,
    *,
    mode: str = "lines",
    width: float = 2,
    shape: str = "linear",
    dash: str = "solid",
    **more: Any,
) -> Figure:
    """A line of a plot; a value that is not finite is a gap."""
    return {
        "type": "scatter",
        "mode": mode,
        "name": name,
        "x": finite_or_gap(x),
        "y": finite_or_gap(y),
        "line": {"color": color, "width": width, "shape": shape, "dash": dash},
        "hovertemplate": f"{hover}<extra></extra>",
        **more,
    }


def bars(
    names: Sequence[Any],
    sizes: Sequence[float | None],
    *,
    color: str | Sequence[str],
    hover: str,
    name: str = "",
    pattern: str | Sequence[str] = "",
    **more: Any,
) -> Figure:
    """Bars that lie one below the other.

    Args:
        names: What each is called, on the y axis.
        sizes: How long each is.
        color: Of all, or of each.
        hover: What plotly writes beside the pointer, before the name.
        name: The name in the legend; empty: they stand in none.
        pattern: plotly's name of the hatching, of all or of each.
        more: What else the trace has.
    """
    legend = {"name": name} if name else {"showlegend": False}
    return {
        "type": "bar",
        "orientation": "h",
        "y": list(names),
        "x": finite_or_gap(sizes),
        "marker": {"color": color} | ({"pattern": {"shape": pattern}} if pattern else {}),
        "hovertemplate": hover if "<extra>" in hover else f"{hover}<extra>{name}</extra>",
        **legend,
        **more,
    }


def bar_plot(traces: Sequence[Figure], x_title: str, **more: Any) -> Figure:
    """A plot of such bars, the first name at the top; bars of one name follow each other."""
    layout = plot_layout(x_title, "") | {"barmode": "stack"} | more
    layout["yaxis"] |= {"autorange": "reversed", "type": "category"}
    return {"data": list(traces), "layout": layout}


def labelled_bars(
    names: Sequence[Any],
    sizes: Sequence[float],
    labels: Sequence[str],
    x_title: str,
    *,
    color: Sequence[str],
    pattern: Sequence[str],
    room: float = 1.3,
) -> Figure:
    """A plot of bars with their labels beside them; `room` is the axis over the longest bar."""
    trace = bars(names, sizes, color=color, pattern=pattern, hover="%{y}: %{text}", text=labels,
                 textposition="outside", cliponaxis=False)  # fmt: skip
    plot = bar_plot([trace], x_title)
    plot["layout"]["xaxis"]["range"] = [0, rounded(room * max(sizes))]
    return plot


def limit_line(
    *,
    x: float | None = None,
    y: float | None = None,
    color: str = "--limit",
    width: float = 2,
    dash: str = "dash",
) -> Figure:
    """A line through the whole plot at one x or one y."""
    along, other, at = ("x", "y", x) if y is None else ("y", "x", y)
    return {
        "type": "line",
        f"{along}0": at,
        f"{along}1": at,
        f"{other}ref": "paper",
        f"{other}0": 0,
        f"{other}1": 1,
        "line": {"color": color, "width": width, "dash": dash},
    }


def shade(start: float, end: float, color: str, opacity: float = 1.0) -> Figure:
    """A stretch of a plot in another colour, from top to bottom."""
    return {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": start,
        "x1": end,
        "y0": 0,
        "y1": 1,
        "fillcolor": color,
        "opacity": opacity,
        "layer": "below",
        "line": {"width": 0},
    }


def finite_or_gap(values: Sequence[float | None]) -> list[float | None]:
    """Numbers of a plot; one that is not finite is a gap: JSON has no word for it."""
    return [
        rounded(value) if value is not None and math.isfinite(value) else None for value in values
    ]


def rounded(value: float) -> float:
    """A number with five digits: what a screen can show, at a third of the file's size."""
    return float(f"{value:.5g}")


def plain_text(text: str) -> str:
    """Plotly reads a little HTML in labels; the user's text must not be taken for it."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
