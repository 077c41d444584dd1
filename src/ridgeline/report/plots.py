"""Plots as plain data for plotly.js, from which the views make theirs: layout, lines, bars.

Colours are names of the style sheet's variables (`--forward`); the page's script puts in their
values, so that the plots follow the reader's light or dark scheme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

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
