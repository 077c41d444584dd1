"""`ridgeline roofline --html`: the operators of a model under the roofs of devices, one file."""

from __future__ import annotations

import math

from ridgeline import quantity
from ridgeline.records.roofline import DeviceRoofline, ModelRoofline
from ridgeline.report import sections
from ridgeline.report.figures import Figure, plain_text, plot_layout, rounded
from ridgeline.report.markup import Markup, element, joined, table
from ridgeline.report.page_frame import drawn, whole_page
from ridgeline.report.roofline_terminal import describe
from ridgeline.report.terms import LOOKS

NOTE = (
    "Each circle is an operator at its arithmetic intensity and the most that the device can do"
    " there; larger circles take more of the time. Left of the ridge memory decides."
)


def roofline_page(roof: ModelRoofline) -> str:
    """The page."""
    plots: dict[str, Figure] = {}
    places = drawn("roofline", roofline_figure(roof), plots, 480)
    bars = drawn("shares", share_figure(roof), plots, 110 + 40 * len(roof.devices))
    body = [
        _header(roof),
        sections.section("Roofline", NOTE, *places),
        sections.section("Where the least time goes", "", *bars),
    ]
    body += [
        sections.section(
            f"{device.device}, {device.dtype}",
            f"Ridge at {quantity.digits(device.ridge_flops_per_byte)} FLOP/byte. Times and bytes"
            " are of all occurrences.",
            operator_table(device),
        )
        for device in roof.devices
    ]
    return whole_page(f"{roof.model} roofline", body, plots)


def roofline_figure(roof: ModelRoofline) -> Figure:
    """Roofs and operators of all devices on one log-log plot."""
    points = [one for device in roof.devices for one in device.operators if one.flops]
    ridges = [device.ridge_flops_per_byte for device in roof.devices]
    low = min(one.intensity_flops_per_byte for one in points) / 2
    high = 2 * max([one.intensity_flops_per_byte for one in points] + ridges)
    traces: list[Figure] = []
    for index, device in enumerate(roof.devices):
        color = LOOKS[index % (len(LOOKS) - 1)].color
        traces += [_roof(device, low, high, color), _points(device, color)]
    layout = plot_layout("FLOP per byte moved", "FLOP/s attainable")
    layout["xaxis"] |= {"type": "log", "tickformat": "~g", "dtick": 1}
    layout["yaxis"] |= {"type": "log", "tickformat": "~s", "dtick": 1}
    return {"data": traces, "layout": layout}


def _roof(device: DeviceRoofline, low: float, high: float, color: str) -> Figure:
    ridge, peak = device.ridge_flops_per_byte, device.peak_flops_per_second
    start = min(low, ridge)
    corners = [(start, start * device.bandwidth_bytes_per_second), (ridge, peak), (high, peak)]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"{device.device} {device.dtype}, {quantity.scaled(peak, 'FLOP/s')}",
        "x": [rounded(x) for x, _ in corners],
        "y": [rounded(y) for _, y in corners],
        "line": {"color": color, "width": 2},
        "hoverinfo": "name",
    }


def _points(device: DeviceRoofline, color: str) -> Figure:
    shown = [one for one in device.operators if one.flops]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"operators on {device.device}",
        "showlegend": False,
        "x": [rounded(one.intensity_flops_per_byte) for one in shown],
        "y": [rounded(one.attainable_flops_per_second) for one in shown],
        "text": [
            f"{plain_text(one.name)} {plain_text(one.shape)}<br>{device.device}: {one.bound}-bound,"
            f" {quantity.percent(one.share)} of the time, {one.count} times"
            for one in shown
        ],
        "marker": {
            "color": color,
            "size": [round(7 + 32 * math.sqrt(one.share), 1) for one in shown],
            "opacity": 0.75,
            "line": {"color": "--card", "width": 1},
        },
        "hovertemplate": "%{text}<br>%{y:.3s}FLOP/s at %{x:.3g} FLOP/byte<extra></extra>",
    }


def share_figure(roof: ModelRoofline) -> Figure:
    """The least time of each device by kind of work and bound."""
    kinds = [
        (f"{kind}, {bound}-bound", kind, bound)
        for kind in ("product", "attention", "elementwise")
        for bound in ("compute", "memory")
    ]
    traces: list[Figure] = []
    for place, (name, kind, bound) in enumerate(kinds):
        sizes = [
            sum(
                one.seconds * one.count
                for one in device.operators
                if one.kind == kind and one.bound == bound
            )
            for device in roof.devices
        ]
        if not any(sizes):
            continue
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": [device.device for device in roof.devices],
                "x": [rounded(1e3 * size) for size in sizes],
                "marker": {"color": LOOKS[place].color},
                "hovertemplate": "%{x:.4g} ms<extra>" + name + "</extra>",
            }
        )
    layout = plot_layout("ms, at the least", "")
    layout["barmode"] = "stack"
    layout["yaxis"] |= {"autorange": "reversed", "type": "category"}
    return {"data": traces, "layout": layout}


def operator_table(device: DeviceRoofline) -> Markup:
    """Every operator on one device, in the order of the pass."""
    rows = [
        [
            joined([element("b", one.name), element("small", one.shape)]),
            one.bound,
            quantity.count(one.count),
            quantity.scaled(one.flops * one.count, "FLOP"),
            quantity.memory(one.moved_bytes * one.count),
            quantity.digits(one.intensity_flops_per_byte),
            quantity.scaled(one.attainable_flops_per_second, "FLOP/s") if one.flops else "–",
            quantity.seconds(one.seconds * one.count),
            quantity.percent(one.share),
        ]
        for one in device.operators
    ]
    names = ["operator", "bound", "times", "FLOPs", "moved", "FLOP/byte", "attainable", "time"]
    return table([*names, "share"], rows, text_columns=2, class_="operators")


def _header(roof: ModelRoofline) -> Markup:
    facts = [
        ("FLOPs", quantity.scaled(roof.flops, "FLOP")),
        ("bytes moved", quantity.memory(roof.moved_bytes)),
        ("FLOP/byte over all", quantity.digits(roof.flops / roof.moved_bytes)),
    ]
    facts.append(("weights", quantity.memory(roof.weight_bytes)))
    facts += [
        (f"least time, {device.device}", quantity.seconds(device.seconds))
        for device in roof.devices
    ]
    return element(
        "header",
        element("p", element("b", "Roofline"), f" · {describe(roof)}", class_="origin"),
        element("h1", roof.model),
        sections.tiles(facts),
    )
