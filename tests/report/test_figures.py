"""Plots as data: what they show, and that plotly accepts them."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from tests.report.records import (
    BANDWIDTH_BYTES_PER_SECOND,
    PEAK_FLOPS_PER_SECOND,
    a_loss_check,
    a_profile,
    an_operator,
    operators,
    step_samples,
)

from ridgeline.records import MemoryPoint
from ridgeline.report import figures
from ridgeline.report.figures import MOST_POINTS, Roof, roof_of
from ridgeline.report.plots import Figure


def some_figures() -> list[tuple[str, Figure | None]]:
    before, after = a_profile(), a_profile(0.1, operators=operators(0.5, "bfloat16"))
    runs = [("as it stood", before), ("tuned", after)]
    roof = roof_of([*before.operators, *after.operators])
    return [
        ("roofline", figures.roofline(runs, roof)),
        ("steps", figures.step_times([("a", step_samples(0.2)), ("b", step_samples(0.1))])),
        ("memory", figures.memory_over_time(runs[:1])),
        ("memories", figures.memory_over_time(runs)),
        ("losses", figures.losses(a_loss_check())),
        ("loss", figures.loss_curve(before)),
    ]


def with_colors(value: Any) -> Any:
    """What the page's script does: variables become colours."""
    if isinstance(value, str) and value.startswith("--"):
        return "#888888"
    if isinstance(value, list):
        return [with_colors(item) for item in value]
    if isinstance(value, dict):
        return {key: with_colors(item) for key, item in value.items()}
    return value


@pytest.mark.parametrize(("name", "figure"), some_figures())
def test_plotly_accepts_every_property(name: str, figure: Figure | None) -> None:
    from plotly.graph_objects import Figure as PlotlyFigure

    assert figure is not None
    assert len(PlotlyFigure(with_colors(figure)).data) == len(figure["data"])


def test_the_ceilings_are_found_in_the_operators_limits() -> None:
    found = [
        an_operator("mm", "", "forward", 1.0, 1e10, 1e6),
        an_operator("mm", "", "forward", 1.0, 1e10, 1e6, dtype="bfloat16"),
        an_operator("add", "", "forward", 1.0, 1e3, 1e8),
    ]
    roof = roof_of(found)
    assert roof.flops_per_second == pytest.approx(PEAK_FLOPS_PER_SECOND)
    assert roof.bytes_per_second == pytest.approx(BANDWIDTH_BYTES_PER_SECOND)


def test_operators_without_limits_give_no_ceilings() -> None:
    bare = [msgspec.structs.replace(op, bound="", limit_seconds=0.0) for op in operators()]
    assert roof_of(bare) == Roof(flops_per_second={}, bytes_per_second=None)
    figure = figures.roofline([("run", a_profile(operators=bare))], roof_of(bare))
    assert figure is not None
    assert len(figure["data"]) == 1


def test_the_roof_bends_at_the_ridge() -> None:
    roof = Roof(flops_per_second={"float32": 100e9}, bytes_per_second=10e9)
    figure = figures.roofline([("run", a_profile())], roof)
    assert figure is not None
    line = figure["data"][0]
    assert (line["x"][1], line["y"][1]) == (10.0, 100e9)
    assert line["y"][0] == pytest.approx(line["x"][0] * 10e9, rel=1e-3)


def test_operators_without_arithmetic_are_not_on_the_roofline() -> None:
    only_copies = a_profile(operators=[an_operator("copy_", "", "forward", 1.0, 0.0, 1e6)])
    assert figures.roofline([("run", only_copies)], roof_of(only_copies.operators)) is None


def test_a_thinned_memory_timeline_keeps_its_peak() -> None:
    points = [MemoryPoint(seconds=i / 1e5, bytes=1, phase="forward") for i in range(50_000)]
    points[31_234] = msgspec.structs.replace(points[31_234], bytes=10**9)
    figure = figures.memory_over_time([("run", a_profile(memory_timeline=points))])
    assert figure is not None
    assert len(figure["data"][0]["y"]) <= MOST_POINTS
    assert max(figure["data"][0]["y"]) == 1000.0


def test_losses_that_are_not_finite_are_gaps() -> None:
    check = a_loss_check(baseline=[1.0, math.nan, 2.0], candidate=[1.0, math.inf, 2.0])
    figure = figures.losses(check)
    assert figure is not None
    assert [trace["y"] for trace in figure["data"][1:]] == [[1.0, None, 2.0]] * 2


def test_what_was_not_measured_is_not_drawn() -> None:
    empty = a_profile(losses=[], memory_timeline=[], operators=[])
    assert figures.loss_curve(empty) is None
    assert figures.memory_over_time([("run", empty)]) is None
    assert figures.step_times([("run", [])]) is None
    assert figures.losses(a_loss_check(baseline=[], candidate=[])) is None
