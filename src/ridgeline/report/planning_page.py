"""The page of a plan or a prediction: one self-contained HTML file.

`planning_page` draws estimates (the first is the one in question, the others stand beside it),
with the pipeline's timeline, scaling curves and the Pareto front where they are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ridgeline import quantity
from ridgeline.cost.estimate_timeline import timeline_of
from ridgeline.records.estimate import Estimate
from ridgeline.report import planning_figures, sections
from ridgeline.report.figures import Figure
from ridgeline.report.markup import Markup, element, table
from ridgeline.report.page_frame import drawn, whole_page
from ridgeline.report.terms import layout_name, plain, rate_of, short_layout_name

if TYPE_CHECKING:
    from ridgeline.cost.pipeline_schedule import Timeline
    from ridgeline.cost.scaling import ScalingCurve

VERDICTS = {"fits": "fits", "tight": "tight", "oom": "out of memory"}


def planning_page(
    estimates: Sequence[Estimate],
    *,
    title: str,
    subtitle: str = "",
    pareto: Sequence[Estimate] = (),
    timeline: Timeline | None = None,
    scaling: Sequence[ScalingCurve] = (),
    notes: Sequence[str] = (),
) -> str:
    """The page of one or more estimates; `title` says what is planned, e.g. model on cluster.

    Without a `timeline` a pipeline's is drawn from the first estimate.
    """
    best = estimates[0]
    alike = timeline is None
    timeline = timeline_of(best) if timeline is None else timeline
    plots: dict[str, Figure] = {}
    body = [_header(best, title, subtitle, notes)]
    labelled = _labels(estimates)
    height = 130 + 34 * len(labelled)
    breakdown = planning_figures.step_breakdown(labelled)
    body.append(
        sections.section(
            "Where a step goes",
            "Exposed time: what other work hides is not counted. The terms add up to the step.",
            *drawn("breakdown", breakdown, plots, height),
            _breakdown_table(best),
        )
    )
    body.append(
        sections.section(
            "Memory by pipeline stage",
            f"Peak of the fullest device {quantity.memory(best.memory.peak_bytes)} of"
            f" {quantity.memory(best.memory.capacity_bytes)}: {VERDICTS[best.memory.verdict]}.",
            *drawn("memory", planning_figures.memory_by_stage(best.memory), plots, 380),
        )
    )
    if timeline is not None:
        body += _timeline_section(timeline, plots, alike=alike)
    if len(pareto) > 1:
        figure = planning_figures.pareto_front(pareto, best)
        note = "Nothing below and to the left of the line was found. Hover for the layout."
        body.append(sections.section("Speed against memory", note, *drawn("pareto", figure, plots)))
    if scaling:
        figure = planning_figures.scaling_efficiency(scaling)
        note = "Samples per second per device, over those of one device."
        places = drawn("scaling", figure, plots)
        body.append(sections.section("Scaling of data parallelism", note, *places))
    if len(estimates) > 1:
        body.append(sections.section("Layouts compared", "", _layout_table(estimates)))
    if best.assumed:
        listed = sections.remarks(best.assumed)
        body.append(sections.section("Assumed, not measured or given", "", listed))
    return whole_page(title, body, plots)


def _header(best: Estimate, title: str, subtitle: str, notes: Sequence[str]) -> Markup:
    low, high = best.interval
    facts = [
        ("step", quantity.seconds(best.step_seconds)),
        ("80 % interval", f"{quantity.seconds(low)} – {quantity.seconds(high)}"),
        rate_of(best),
        ("MFU", quantity.percent(best.mfu)),
        ("HFU", quantity.percent(best.hfu)),
        ("peak memory", quantity.memory(best.memory.peak_bytes)),
        ("bottleneck", plain(best.bottleneck)),
    ]
    good = "chip good" if best.memory.verdict == "fits" else "chip"
    return element(
        "header",
        element("p", element("b", title), f" · {subtitle}" if subtitle else "", class_="origin"),
        element(
            "h1",
            f"{quantity.seconds(best.step_seconds)} per step",
            element("span", VERDICTS[best.memory.verdict], class_=good),
        ),
        element("p", layout_name(best.layout), class_="sub"),
        sections.tiles(facts),
        element("p", f"FLOPs: {best.flops_convention}", class_="note"),
        sections.remarks(notes),
    )


def _labels(estimates: Sequence[Estimate]) -> list[tuple[str, Estimate]]:
    """Short names; equal ones are told apart by their place."""
    names = [short_layout_name(one.layout) for one in estimates]
    return [
        (name if names.count(name) == 1 else f"{name} ({place})", estimate)
        for place, (name, estimate) in enumerate(zip(names, estimates, strict=True), start=1)
    ]


def _breakdown_table(best: Estimate) -> Markup:
    rows = [
        [plain(name), quantity.seconds(size), quantity.percent(size / best.step_seconds)]
        for name, size in sorted(best.breakdown.items(), key=lambda item: -item[1])
        if size
    ]
    return table(["term", "time", "share"], rows)


def _timeline_section(timeline: Timeline, plots: dict[str, Figure], *, alike: bool) -> list[Markup]:
    live = max(timeline.peak_live_microbatches)
    note = (
        f"{timeline.schedule}, {timeline.num_microbatches} micro-batches:"
        f" {quantity.percent(timeline.bubble_fraction)} of the time idle,"
        f" activations of up to {live:.3g} micro-batches held by one stage."
    )
    if alike:
        note += " Stages are drawn alike: what imbalance costs is in the step's bubble alone."
    figure = planning_figures.pipeline_timeline(timeline)
    shown = planning_figures.shown_seconds(timeline)
    if shown < timeline.makespan_seconds:
        whole = quantity.seconds(timeline.makespan_seconds)
        note += f" Drawn are the first {quantity.seconds(shown)} of {whole}."
    height = 120 + 30 * timeline.num_stages
    return [
        sections.section("One step of the pipeline", note, *drawn("time", figure, plots, height))
    ]


def _layout_table(estimates: Sequence[Estimate]) -> Markup:
    rows = [
        [
            layout_name(one.layout),
            quantity.seconds(one.step_seconds),
            quantity.ratio(one.step_seconds / estimates[0].step_seconds),
            rate_of(one)[1],
            quantity.percent(one.mfu),
            quantity.memory(one.memory.peak_bytes),
            VERDICTS[one.memory.verdict],
            plain(one.bottleneck),
        ]
        for one in estimates
    ]
    rate = rate_of(estimates[0])[0]
    names = ["layout", "step", "of the first", rate, "MFU", "peak memory", "", ""]
    return table(names, rows)
