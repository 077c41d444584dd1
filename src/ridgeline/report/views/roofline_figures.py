"""The figures of `ridgeline roofline` on a page: operators under roofs, and the least time of each.

Colour and shape of a mark say what bounds it; the colour of its edge is its device's.
"""

from __future__ import annotations

import math

from ridgeline import quantity
from ridgeline.records.roofline import AttainedOperator, AttainedStep, DeviceRoofline, ModelRoofline
from ridgeline.report.plots import LOOKS, Figure, bar_plot, bars, line, plain_text, plot_layout

MARKS = {"memory": ("--term-3", "square"), "compute": ("--term-5", "circle")}
"""What bounds an operator → colour and shape of its mark."""


def roofline_figure(roof: ModelRoofline) -> Figure:
    """Roofs and operators of all devices on one log-log plot."""
    points = [one for device in roof.devices for one in device.operators if one.flops]
    places = [one.intensity_flops_per_byte for one in points]
    if roof.measured:
        places += [one.intensity_flops_per_byte for one in roof.measured.operators]
    low = min(places) / 2
    high = 2 * max(places + [device.ridge_flops_per_byte for device in roof.devices])
    traces: list[Figure] = []
    for index, device in enumerate(roof.devices):
        color = LOOKS[look_of(index)].color
        traces += [_roof(device, low, high, color), _points(device, color)]
    traces += [_bound_key(bound) for bound in MARKS]
    if roof.measured:
        traces.append(_measured_points(roof.measured))
    layout = plot_layout("FLOP per byte moved", "FLOP/s attainable")
    layout["xaxis"] |= {"type": "log", "tickformat": "~g", "dtick": 1}
    layout["yaxis"] |= {"type": "log", "tickformat": "~s", "dtick": 1}
    return {"data": traces, "layout": layout}


def look_of(index: int) -> int:
    """The number of a device's look; the last one is nobody's."""
    return index % (len(LOOKS) - 1)


def _roof(device: DeviceRoofline, low: float, high: float, color: str) -> Figure:
    ridge, peak = device.ridge_flops_per_byte, device.peak_flops_per_second
    start = min(low, ridge)
    name = f"{device.device} {device.dtype}, {quantity.scaled(peak, 'FLOP/s')}"
    rates = [start * device.bandwidth_bytes_per_second, peak, peak]
    return line(name, [start, ridge, high], rates, color, "", hoverinfo="name")


def _points(device: DeviceRoofline, color: str) -> Figure:
    shown = [one for one in device.operators if one.flops]
    return line(
        f"operators on {device.device}",
        [one.intensity_flops_per_byte for one in shown],
        [one.attainable_flops_per_second for one in shown],
        color,
        "%{text}<br>%{y:.3s}FLOP/s at %{x:.3g} FLOP/byte",
        mode="markers",
        showlegend=False,
        text=[
            f"{plain_text(one.name)} {plain_text(one.shape)}<br>{device.device}: {one.bound}-bound,"
            f" {quantity.percent(one.share)} of the time, {one.count} times"
            for one in shown
        ],
        marker={
            "color": [MARKS[one.bound][0] for one in shown],
            "symbol": [MARKS[one.bound][1] for one in shown],
            "size": [round(8 + 32 * math.sqrt(one.share), 1) for one in shown],
            "opacity": 0.75,
            "line": {"color": color, "width": 1.5},
        },
    )


def _bound_key(bound: str) -> Figure:
    """A line of the legend: what the colour and the shape of a mark say."""
    color, symbol = MARKS[bound]
    marker = {"color": color, "symbol": symbol, "size": 9}
    return line(f"{bound}-bound", [0.0], [None], color, "", mode="markers", marker=marker)


def _measured_points(step: AttainedStep) -> Figure:
    color = "--term-4"
    return line(
        f"measured on {plain_text(step.device)}",
        [one.intensity_flops_per_byte for one in step.operators],
        [one.attained_flops_per_second for one in step.operators],
        color,
        "%{text}<br>%{y:.3s}FLOP/s at %{x:.3g} FLOP/byte",
        mode="markers",
        text=[_measured_text(one) for one in step.operators],
        marker={
            "color": color,
            "symbol": "diamond",
            "size": [round(7 + 32 * math.sqrt(one.share), 1) for one in step.operators],
            "opacity": 0.75,
            "line": {"color": "--card", "width": 1},
        },
    )


def _measured_text(one: AttainedOperator) -> str:
    limit = f", {quantity.percent(one.limit_share)} of its limit" if one.limit_share else ""
    return (
        f"{plain_text(one.name)} {plain_text(one.shapes)} {one.dtype}<br>{one.phase},"
        f" {quantity.seconds(one.seconds)} of a step{limit}"
    )


def share_figure(roof: ModelRoofline) -> Figure:
    """The least time of each device by kind of work and bound."""
    kinds = [
        (f"{kind}, {bound}-bound", kind, bound)
        for kind in ("matmul", "attention", "elementwise")
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
            bars(
                [device.device for device in roof.devices],
                [1e3 * size for size in sizes],
                name=name,
                color=LOOKS[place].color,
                hover="%{x:.4g} ms",
            )
        )
    return bar_plot(traces, "ms, at the least")
