"""Operators under roofs, drawn: table, log-log plot in the terminal, page."""

from __future__ import annotations

import re

import pytest
from tests.report.drawn import drawn
from tests.report.test_figures import with_colors
from tests.report.test_html import own_part

from ridgeline.plan.model_roofline import model_roofline
from ridgeline.records.roofline import ModelRoofline
from ridgeline.report.page import draw_page
from ridgeline.report.views.roofline import describe, letters, roofline_document
from ridgeline.report.views.roofline_figures import roofline_figure, share_figure


def text_of(roof: ModelRoofline, width: int) -> str:
    return drawn(roofline_document(roof), width)


ROOFS = {
    "train": model_roofline("llama-3-8b", ["h100"]),
    "decode": model_roofline("llama-3-8b", ["h100", "a100"], phase="decode", batch=16),
    "images": model_roofline("resnet50", ["v100", "h100", "b200"], batch=64),
    "many": model_roofline("deepseek-v3", ["mi300x"], seq=1024),
}


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize("name", sorted(ROOFS))
@pytest.mark.parametrize("width", [80, 100, 140])
def test_every_operator_has_a_line_and_nothing_is_wider_than_the_terminal(
    name: str, width: int
) -> None:
    roof = ROOFS[name]
    text = text_of(roof, width)
    assert max(map(len, text.splitlines())) <= width
    table = text[text.index("Operator") :]
    for one in roof.devices[0].operators:
        assert one.name[:12] in table


def test_the_plot_has_the_slope_the_roof_and_the_operators() -> None:
    text = text_of(ROOFS["train"], 100)
    plot = text[: text.index("Operator")].splitlines()
    rows = [line for line in plot if re.match(r"^ .{7}[│┤]", line)]
    assert len(rows) == 18
    slope = [line.index("╱") for line in rows if "╱" in line]
    assert slope == sorted(slope, reverse=True)
    assert sum("─" in line for line in rows) == 1
    assert sum(line.count("─") for line in rows) >= 5
    # At the roof, right of the ridge, stand letters of compute-bound operators and no others.
    top = next(line for line in rows if "─" in line)
    operators = ROOFS["train"].devices[0].operators
    by_letter = dict(zip(letters(ROOFS["train"]), [one.bound for one in operators], strict=True))
    at_the_roof = {sign for sign in top[9:-1] if sign.isalpha()}
    assert at_the_roof
    assert {by_letter[sign] for sign in at_the_roof} == {"compute"}


def test_devices_are_told_apart_by_figures() -> None:
    text = text_of(ROOFS["images"], 140)
    plot = text[: text.index("Operator")]
    for figure in ("1", "2", "3"):
        assert re.search(rf"{figure} *$", plot, re.MULTILINE)
    assert "3  B200 bf16" in text
    assert "1  V100" in text
    assert "fp16" in text  # what the V100 trains in


@pytest.mark.parametrize("name", sorted(ROOFS))
def test_plotly_accepts_every_property(name: str) -> None:
    from plotly.graph_objects import Figure as PlotlyFigure

    for figure in (roofline_figure(ROOFS[name]), share_figure(ROOFS[name])):
        assert len(PlotlyFigure(with_colors(figure)).data) == len(figure["data"])


@pytest.mark.parametrize("name", sorted(ROOFS))
def test_points_lie_on_their_roof(name: str) -> None:
    roof = ROOFS[name]
    for device in roof.devices:
        for one in device.operators:
            if one.kind == "elementwise" or not one.flops:
                continue
            limit = min(
                device.peak_flops_per_second,
                one.intensity_flops_per_byte * device.bandwidth_bytes_per_second,
            )
            assert one.attainable_flops_per_second == pytest.approx(limit)


def test_the_bars_add_up_to_the_least_time() -> None:
    for roof in ROOFS.values():
        figure = share_figure(roof)
        for place, device in enumerate(roof.devices):
            drawn = sum(trace["x"][place] for trace in figure["data"])
            assert drawn == pytest.approx(1e3 * device.seconds, rel=1e-3)


def test_the_page_has_a_table_for_each_device() -> None:
    page = own_part(draw_page(roofline_document(ROOFS["decode"])))
    for heading in ("Roofline", "Where the least time goes", "H100-SXM-80GB, bf16",
                    "A100-SXM-80GB, bf16"):  # fmt: skip
        assert f"<h2>{heading}</h2>" in page
    assert page.count(">attention</span>") == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("train", "train: forward and backward, 1 sequence of 4,096 tokens"),
        ("decode", "decode: one new token each, 16 sequences after 4,096 cached tokens"),
        ("images", "train: forward and backward, 64 images"),
    ],
)
def test_what_is_computed_is_said_in_words(name: str, words: str) -> None:
    assert describe(ROOFS[name]) == words
