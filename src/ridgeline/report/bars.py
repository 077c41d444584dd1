"""Pictures made of plain boxes: stacked bars, a waterfall, whiskers. They need no script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.report.markup import Markup, element


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A coloured piece of a stacked bar."""

    name: str
    """Also the name of its colour in the style sheet."""
    size: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """One bar of a waterfall, from `start` down to `end`."""

    name: str
    remark: str
    start: float
    end: float
    label: str
    total: bool = False
    """A whole bar (before, after) and not a piece that was taken away."""


def stacked(title: str, total_label: str, parts: Sequence[Part], scale: float) -> Markup:
    """One bar of parts; `scale` is the size of a bar over the full width."""
    pieces = [
        element(
            "span",
            class_=f"piece fill-{part.name}",
            style=f"width:{100 * part.size / scale:.3f}%",
            title=f"{part.name}: {part.label}",
        )
        for part in parts
    ]
    return element(
        "div",
        element("div", element("span", title), element("b", total_label), class_="bar-title"),
        element("div", *pieces, class_="bar"),
        class_="stacked",
    )


def legend(columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> Markup:
    """Names with their colours, and a column of numbers for each bar."""
    head = [element("th", "")] + [element("th", column, class_="number") for column in columns]
    body = [
        element(
            "tr",
            element("td", element("i", class_=f"dot fill-{name}"), name),
            *(element("td", cell, class_="number") for cell in cells),
        )
        for name, cells in rows
    ]
    inner = element("table", element("thead", element("tr", *head)), element("tbody", *body))
    return element("div", inner, class_="scroll legend")


def waterfall(falls: Sequence[Fall]) -> Markup:
    """Bars from the whole down to what is left, one under the other."""
    scale = max(max(fall.start, fall.end) for fall in falls)
    rows = []
    for fall in falls:
        low, high = sorted((fall.start, fall.end))
        kind = "whole" if fall.total else ("saved" if fall.end <= fall.start else "lost")
        bar = element(
            "span",
            class_=f"fall {kind}",
            style=f"left:{100 * low / scale:.3f}%;width:{100 * (high - low) / scale:.3f}%",
        )
        rest = (
            []
            if fall.total
            else [
                element("span", class_="fall rest", style=f"left:0;width:{100 * low / scale:.3f}%")
            ]
        )
        rows.append(
            element(
                "div",
                element("div", element("b", fall.name), element("span", fall.remark), class_="who"),
                element("div", *rest, bar, class_="track"),
                element("div", fall.label, class_="value"),
                class_="fall-row total" if fall.total else "fall-row",
            )
        )
    return element("div", *rows, class_="waterfall")


def whisker(low: float, middle: float, high: float, span: tuple[float, float]) -> Markup:
    """An interval as a line with a dot, beside the line of "no difference" at 1."""
    start, end = span
    width = (end - start) or 1.0

    def place(value: float) -> float:
        return 100 * min(1.0, max(0.0, (value - start) / width))

    return element(
        "span",
        element("i", class_="one", style=f"left:{place(1.0):.2f}%"),
        element(
            "i",
            class_="range",
            style=f"left:{place(low):.2f}%;width:{place(high) - place(low):.2f}%",
        ),
        element("i", class_="middle", style=f"left:{place(middle):.2f}%"),
        class_="whisker",
    )
