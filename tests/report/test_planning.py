"""Plans and predictions drawn: pages, figures and their twins in the terminal."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.drawn import drawn
from tests.report.estimates import (
    CAPACITY_BYTES,
    a_memory,
    a_timeline,
    an_estimate,
    renamed,
    some_curves,
    some_estimates,
)
from tests.report.test_figures import with_colors
from tests.report.test_html import EVIL, own_part

from ridgeline.cost.pipeline_schedule import Timeline, timeline_of
from ridgeline.records.estimate import Estimate
from ridgeline.records.layout import Layout
from ridgeline.report.document import Block, Drawing, ReportDocument
from ridgeline.report.page import draw_page
from ridgeline.report.plots import LOOKS, Figure, looks
from ridgeline.report.views import planning_figures
from ridgeline.report.views.layout_names import layout_name
from ridgeline.report.views.plan_training import pareto_table
from ridgeline.report.views.planning_figures import MOST_BLOCKS, pareto_members
from ridgeline.report.views.predict_training import (
    estimate_document,
    memory_bars,
    step_table,
    timeline_lines,
)


def text_of(*blocks: Block, width: int = 80) -> str:
    return drawn(ReportDocument("", blocks), width)


def a_page(*estimates: Estimate, **parts: Any) -> str:
    return own_part(draw_page(estimate_document(estimates, **parts)))


def a_drawing(timeline: Timeline) -> Block:
    return Drawing(lambda columns: timeline_lines(timeline, columns))


def some_figures() -> list[tuple[str, Figure | None]]:
    estimates = some_estimates()
    labelled = [(str(place), one) for place, one in enumerate(estimates)]
    return [
        ("memory", planning_figures.memory_by_stage(estimates[0].memory)),
        ("one stage", planning_figures.memory_by_stage(a_memory(2.0, 1))),
        ("breakdown", planning_figures.step_breakdown(labelled)),
        ("pareto", planning_figures.pareto_front(estimates, estimates[0])),
        ("scaling", planning_figures.scaling_efficiency(some_curves())),
        ("1f1b", planning_figures.pipeline_timeline(a_timeline())),
        ("interleaved", planning_figures.pipeline_timeline(a_timeline("interleaved", 4, 2))),
        ("zero-bubble", planning_figures.pipeline_timeline(a_timeline("zero-bubble"))),
        ("many blocks", planning_figures.pipeline_timeline(a_timeline("interleaved", 16, 8))),
    ]


@pytest.mark.parametrize(("name", "figure"), some_figures())
def test_plotly_accepts_every_property(name: str, figure: Figure | None) -> None:
    from plotly.graph_objects import Figure as PlotlyFigure

    assert figure is not None
    assert len(PlotlyFigure(with_colors(figure)).data) == len(figure["data"])


def test_the_bars_of_a_stage_add_up_to_its_memory() -> None:
    memory = a_memory()
    figure = planning_figures.memory_by_stage(memory)
    for place, stage in enumerate(memory.stages):
        drawn = sum(trace["y"][place] for trace in figure["data"])
        assert drawn == pytest.approx(stage.total_bytes / 1e9)
    assert figure["layout"]["shapes"][0]["y0"] == pytest.approx(CAPACITY_BYTES / 1e9)


def test_the_bars_of_a_step_add_up_to_it_and_empty_terms_are_left_out() -> None:
    figure = planning_figures.step_breakdown([("a", an_estimate()), ("b", an_estimate(3.0))])
    assert sum(trace["x"][1] for trace in figure["data"]) == pytest.approx(3.0)
    assert "offload" not in {trace["name"] for trace in figure["data"]}


def test_every_block_of_a_timeline_is_drawn_where_it_is() -> None:
    timeline = a_timeline("zero-bubble")
    figure = planning_figures.pipeline_timeline(timeline)
    count = sum(len(stage) for stage in timeline.blocks)
    assert sum(len(trace["x"]) for trace in figure["data"]) == count
    ends = [
        start + length
        for trace in figure["data"]
        for start, length in zip(trace["base"], trace["x"], strict=True)
    ]
    assert max(ends) == pytest.approx(timeline.makespan_seconds, rel=1e-3)


def test_of_a_timeline_of_too_many_blocks_the_first_are_drawn_and_the_page_says_so() -> None:
    timeline = a_timeline("interleaved", 16, 8)
    assert sum(len(stage) for stage in timeline.blocks) == 8192
    figure = planning_figures.pipeline_timeline(timeline)
    drawn = sum(trace["x"].count(None) for trace in figure["data"])
    assert 0.98 * MOST_BLOCKS < drawn <= MOST_BLOCKS + 64
    page = a_page(an_estimate(), title="m", timeline=timeline)
    assert "Drawn are the first" in page
    assert "Drawn are the first" not in a_page(an_estimate(), title="m", timeline=a_timeline())


def test_blocks_too_many_for_numbers_stand_where_they_are() -> None:
    timeline = a_timeline("interleaved", 16, 8)
    figure = planning_figures.pipeline_timeline(timeline)
    corners = {
        (trace["x"][place], trace["x"][place + 1], trace["y"][place] + 0.44)
        for trace in figure["data"]
        for place in range(0, len(trace["x"]), 5)
    }
    first = timeline.blocks[3][0]
    assert any(
        (start, end) == pytest.approx((first.start_seconds, first.end_seconds), rel=1e-3)
        and rank == pytest.approx(3)
        for start, end, rank in corners
    )


def test_the_pipeline_of_an_estimate_takes_its_time() -> None:
    estimate = an_estimate(2.0, recompute="full")
    timeline = timeline_of(estimate)
    assert timeline is not None
    assert (timeline.num_stages, timeline.num_microbatches) == (4, 8)
    # All but the bubble repeats with each micro-batch: 1.7 s of work on every stage.
    assert timeline.busy_seconds == pytest.approx((1.7,) * 4)
    assert timeline.bubble_fraction == pytest.approx(3 / 11)
    assert timeline_of(an_estimate(2.0, pp=1)) is None
    assert timeline_of(an_estimate(2.0, vpp=2, schedule="interleaved")) is not None
    # 9 micro-batches in groups of 4.
    assert timeline_of(an_estimate(2.0, vpp=2, global_batch=72)) is None


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 2)), min_size=1, max_size=30))
def test_the_front_is_what_nothing_beats_in_both(pairs: list[tuple[float, float]]) -> None:
    estimates = [an_estimate(seconds, memory) for seconds, memory in pairs]
    front = pareto_members(estimates)
    assert front
    for one in estimates:
        beaten = any(
            other.step_seconds <= one.step_seconds
            and other.memory.peak_bytes <= one.memory.peak_bytes
            for other in front
        )
        assert beaten
    for one in front:
        assert not any(
            other.step_seconds < one.step_seconds
            and other.memory.peak_bytes < one.memory.peak_bytes
            for other in estimates
        )


def test_the_page_has_every_part() -> None:
    estimates = some_estimates()
    page = a_page(
        *estimates,
        title="llama-3-70b on 64 x H100",
        pareto=estimates,
        timeline=a_timeline(),
        scaling=some_curves(),
        notes=["a note"],
    )
    for heading in (
        "Where a step goes",
        "Memory by pipeline stage",
        "One step of the pipeline",
        "Speed against memory",
        "Scaling of data parallelism",
        "Layouts compared",
        "Assumed, not measured or given",
    ):
        assert f"<h2>{heading}</h2>" in page
    for text in ("2.00 s per step", "1.74 s – 2.30 s", "llama-3-70b", "a note", "fits", "causal"):
        assert text in page


def test_a_single_estimate_has_a_page_of_its_own() -> None:
    page = a_page(an_estimate(1.0, 2.0, pp=1), title="m")
    assert "OUT OF MEMORY" in page
    for absent in ("Layouts compared", "One step of the pipeline", "Speed against", "Scaling"):
        assert absent not in page


def test_nothing_of_the_users_is_taken_for_html() -> None:
    evil = renamed(an_estimate(), EVIL)
    page = a_page(evil, an_estimate(3.0), title=EVIL, subtitle=EVIL, notes=[EVIL])
    assert "<img" not in page
    assert "alert(1)</script>" not in page


def test_the_panel_tells_speed_memory_and_what_was_assumed() -> None:
    text = drawn(estimate_document([an_estimate()], title="llama"), 80)
    for part in (
        "2.00 s per step", "1.74 s – 2.30 s", "MFU 45 %", "HFU 48 %", "tensor communication",
        "fullest device 50.0 GB of 80.0 GB: fits", "400 Gb/s per device is typical", "llama",
    ):  # fmt: skip
        assert part in text
    assert max(map(len, text.splitlines())) <= 80


def test_memory_past_the_capacity_stands_behind_the_mark() -> None:
    text = text_of(memory_bars(a_memory(1.7)))
    stage = next(line for line in text.splitlines() if line.startswith("stage 0"))
    inside, _, past = stage.partition("|")
    assert "░" in past
    assert len(inside) > len(past)


def test_many_stages_show_the_ends_and_the_fullest() -> None:
    memory = a_memory(0.2, 40)
    fuller = msgspec.structs.replace(memory.stages[20], total_bytes=9e11)
    stages = [*memory.stages[:20], fuller, *memory.stages[21:]]
    text = text_of(memory_bars(msgspec.structs.replace(memory, stages=stages)))
    shown = re.findall(r"^ *stage (\d+)", text, re.MULTILINE)
    assert shown == ["0", "1", "20", "38", "39"]


def test_the_longest_term_has_the_longest_bar() -> None:
    lines = text_of(step_table(an_estimate())).splitlines()[1:]
    lengths = [len(re.findall(r"[█▓▒░·▚▞╬◆■▪◼]", line)) for line in lines]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 24


def test_the_table_of_the_front_is_fastest_first() -> None:
    text = text_of(pareto_table(some_estimates()))
    times = [float(found) for found in re.findall(r"(\d\.\d\d) s", text)]
    assert times == [1.6, 2.0, 2.6]


@pytest.mark.parametrize("width", [40, 80, 160])
def test_the_timeline_of_the_terminal_reads_without_colours(width: int) -> None:
    text = text_of(a_drawing(a_timeline("zero-bubble")), width=width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= max(width, 60)
    stages = [line for line in lines if line.startswith("stage")]
    assert len(stages) == 4
    first, last = stages[0].removeprefix("stage 0 "), stages[3].removeprefix("stage 3 ")
    assert first.startswith("0")
    assert last.startswith("·")
    assert {"A", "a"} <= set(first)


def test_the_share_of_dots_is_the_bubble() -> None:
    timeline = a_timeline("1f1b", 8)
    text = text_of(a_drawing(timeline), width=400)
    cells = "".join(line[8:] for line in text.splitlines() if line.startswith("stage"))
    assert cells.count("·") / len(cells) == pytest.approx(timeline.bubble_fraction, abs=0.01)


@given(st.lists(st.text(min_size=1, max_size=8), max_size=40))
def test_terms_that_are_new_have_a_look_too(names: list[str]) -> None:
    chosen = looks([*names, "weights"])
    assert set(chosen) == {*names, "weights"}
    assert chosen["weights"] is LOOKS[0]
    if len(set(names) | {"weights"}) <= 8 and not set(names) & {"other", "bubble"}:
        assert len({one.color for one in chosen.values()}) == len(chosen)


def test_a_layout_is_named_by_what_it_uses() -> None:
    assert layout_name(Layout()) == "dp 1 · micro-batch 1 · bf16"
    many = Layout(
        dp=8, fsdp=4, zero=2, tp=2, sp=True, pp=2, vpp=3, schedule="interleaved", cp=2, ep=8,
        global_batch=16, recompute="selective", offload="optimizer", compiled=False,
    )  # fmt: skip
    name = layout_name(many)
    for part in ("zero-2 over 4", "tp 2 + sp", "pp 2 x 3 interleaved", "cp 2", "ep 8",
                 "selective recompute", "optimizer offloaded", "eager"):  # fmt: skip
        assert part in name
