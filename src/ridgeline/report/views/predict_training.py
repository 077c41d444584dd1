"""What `ridgeline predict training` shows, and the page of `plan training`.

The first estimate is the one in question, the others stand beside it; the pipeline's timeline,
scaling curves and the Pareto front are drawn where they are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ridgeline import quantity
from ridgeline.records.estimate import Estimate, MemoryEstimate
from ridgeline.report import document as doc
from ridgeline.report.plots import looks
from ridgeline.report.views import planning_figures
from ridgeline.report.views.layout_names import (
    layout_name,
    plain_term,
    rate_of,
    short_layout_name,
)

if TYPE_CHECKING:
    from ridgeline.cost.pipeline_schedule import Timeline
    from ridgeline.cost.scaling import ScalingCurve

VERDICTS = {
    "fits": doc.Phrase("fits", "good"),
    "tight": doc.Phrase("tight", "warning"),
    "oom": doc.Phrase("OUT OF MEMORY", "bad"),
}
MOST_STAGES = 16
"""With more stages a picture shows the first, the last and the fullest."""
_CELLS = {
    "forward": ("0123456789", "black on cyan"),
    "backward": ("ABCDEFGHIJ", "white on blue"),
    "input": ("ABCDEFGHIJ", "white on blue"),
    "weight": ("abcdefghij", "white on magenta"),
}
"""Kind of block → a sign for each micro-batch (by its last digit) and a style."""


def estimate_document(
    estimates: Sequence[Estimate],
    *,
    title: str,
    subtitle: str = "",
    pareto: Sequence[Estimate] = (),
    timeline: Timeline | None = None,
    exact_timeline: bool = False,
    scaling: Sequence[ScalingCurve] = (),
    notes: Sequence[str] = (),
) -> doc.ReportDocument:
    """One or more estimates.

    Args:
        estimates: The first is the one in question.
        title: What is planned, e.g. model on cluster.
        subtitle: What else there is to say of it.
        pareto: Estimates of which none is best in both speed and memory, or any others.
        timeline: Of the pipeline, where there is one.
        exact_timeline: The stages of the timeline are as they differ, not drawn alike.
        scaling: Curves over numbers of devices.
        notes: Remarks.
    """
    best = estimates[0]
    shown = [*estimate_blocks(best, title=title, subtitle=subtitle), doc.Lines(notes, "warning")]
    breakdown = planning_figures.step_breakdown(_labels(estimates))
    drawn = doc.figure("breakdown", breakdown, 130 + 34 * len(estimates))
    note = "Exposed time: what other work hides is not counted. The terms add up to the step."
    shown.append(
        doc.Only("page", [doc.Chapter("Where a step goes", [*drawn, step_table(best)], note)])
    )
    shown += _memory(best.memory)
    if timeline is not None:
        shown += _pipeline(timeline, alike=not exact_timeline)
    page: list[doc.Block] = []
    if len(pareto) > 1:
        front = doc.figure("pareto", planning_figures.pareto_front(pareto, best))
        note = "Nothing below and to the left of the line was found. Hover for the layout."
        page.append(doc.Chapter("Speed against memory", front, note))
    if scaling:
        curves = doc.figure("scaling", planning_figures.scaling_efficiency(scaling))
        note = "Samples per second per device, over those of one device."
        page.append(doc.Chapter("Scaling of data parallelism", curves, note))
    if len(estimates) > 1:
        page.append(doc.Chapter("Layouts compared", [_layouts(estimates)]))
    shown.append(doc.Only("page", page))
    if best.assumed:
        shown.append(doc.Chapter("Assumed, not measured or given", [doc.Lines(best.assumed)]))
    shown.append(
        doc.Lines([f"{change.name}: {change.before:.4g} → {change.after:.4g}, as measured"
               for change in best.calibrated])
    )  # fmt: skip
    return doc.ReportDocument(title, shown)


def estimate_blocks(best: Estimate, *, title: str = "", subtitle: str = "") -> list[doc.Block]:
    """The speed of an estimate and, in a terminal, where its step goes."""
    low, high = (quantity.seconds(end) for end in best.interval)
    pairs: list[tuple[str, doc.Words]] = [
        ("80 % interval", f"{low} – {high}"),
        rate_of(best),
        ("MFU", quantity.percent(best.mfu)),
        ("HFU", quantity.percent(best.hfu)),
        ("peak memory", quantity.memory(best.memory.peak_bytes)),
        ("bottleneck", plain_term(best.bottleneck)),
    ]
    origin = (doc.Phrase(title, "strong"), f" · {subtitle}" if subtitle else "") if title else ""
    return [
        doc.Lead(
            title=f"{quantity.seconds(best.step_seconds)} per step",
            subtitle=layout_name(best.layout),
            origin=origin,
            chip=VERDICTS[best.memory.verdict],
        ),
        doc.Values(pairs),
        doc.Paragraph(f"FLOPs: {best.flops_convention}", "dim"),
        doc.Only("terminal", [step_table(best)]),
    ]


def step_table(estimate: Estimate) -> doc.DataTable:
    """Exposed seconds by term, longest first."""
    return term_table("Step", estimate.breakdown, estimate.step_seconds)


def term_table(whole: str, breakdown: dict[str, float], total_seconds: float) -> doc.DataTable:
    """Seconds by term and their share of the `whole`, longest first."""
    terms = sorted(breakdown.items(), key=lambda item: -item[1])
    chosen = looks(name for name, size in breakdown.items() if size)
    longest = max((size for _, size in terms), default=1.0) or 1.0
    columns = (
        doc.words("term", whole),
        doc.words("bar", ""),
        doc.Column("seconds", "time"),
        doc.Column("share"),
    )
    rows = [
        (
            plain_term(name),
            doc.Meter(size / longest, chosen[name]),
            size,
            size / total_seconds,
        )
        for name, size in terms
        if size
    ]
    return doc.DataTable(columns, rows)


def _memory(memory: MemoryEstimate) -> list[doc.Block]:
    """One bar per stage up to the capacity; what is past it does not fit."""
    note = (
        f"Peak of the fullest device {quantity.memory(memory.peak_bytes)} of"
        f" {quantity.memory(memory.capacity_bytes)}: {VERDICTS[memory.verdict].text}."
    )
    drawn = doc.figure("memory", planning_figures.memory_by_stage(memory), 380)
    bars = memory_bars(memory)
    return [doc.Chapter("Memory by pipeline stage", [*drawn, doc.Only("terminal", [bars])], note)]


def memory_bars(memory: MemoryEstimate) -> doc.Bars:
    """What fills each stage, with the sizes of the fullest one."""
    sized = (item for stage in memory.stages for item in stage.terms.items())
    terms = list(dict.fromkeys(name for name, size in sized if size))
    chosen = looks(terms)
    bars = []
    for index in _shown_stages(memory):
        stage = memory.stages[index]
        parts = [
            doc.BarPart(plain_term(name), size, quantity.memory(size), chosen[name])
            for name, size in stage.terms.items()
            if size
        ]
        bars.append(doc.Bar(f"stage {stage.stage}", quantity.memory(stage.total_bytes), parts))
    fullest = max(memory.stages, key=lambda stage: stage.total_bytes)
    rows = [
        (doc.Key(plain_term(name), chosen[name]), fullest.terms[name])
        for name in terms
        if fullest.terms.get(name)
    ]
    columns = (doc.words("for"), doc.Column("bytes", f"stage {fullest.stage}"))
    return doc.Bars(bars, doc.DataTable(columns, rows), limit=memory.capacity_bytes)


def _shown_stages(memory: MemoryEstimate) -> list[int]:
    count = len(memory.stages)
    if count <= MOST_STAGES:
        return list(range(count))
    fullest = max(range(count), key=lambda index: memory.stages[index].total_bytes)
    return sorted({0, 1, fullest, count - 2, count - 1})


def _labels(estimates: Sequence[Estimate]) -> list[tuple[str, Estimate]]:
    """Short names; equal ones are told apart by their place."""
    names = [short_layout_name(one.layout) for one in estimates]
    return [
        (name if names.count(name) == 1 else f"{name} ({place})", estimate)
        for place, (name, estimate) in enumerate(zip(names, estimates, strict=True), start=1)
    ]


def _layouts(estimates: Sequence[Estimate]) -> doc.DataTable:
    columns = (
        doc.words("layout"),
        doc.Column("step_seconds", "step"),
        doc.Column("ratio", "of the first"),
        doc.Column(rate_of(estimates[0])[0]),
        doc.Column("mfu_share", "MFU"),
        doc.Column("peak_bytes", "peak memory"),
        doc.words("verdict", ""),
        doc.words("bottleneck"),
    )
    rows = [
        (
            layout_name(one.layout),
            one.step_seconds,
            one.step_seconds / estimates[0].step_seconds,
            rate_of(one)[1],
            one.mfu,
            one.memory.peak_bytes,
            VERDICTS[one.memory.verdict],
            plain_term(one.bottleneck),
        )
        for one in estimates
    ]
    return doc.DataTable(columns, rows)


# -- the pipeline ----------------------------------------------------------------------------------


def _pipeline(timeline: Timeline, *, alike: bool) -> list[doc.Block]:
    live = max(timeline.peak_live_microbatches)
    note = (
        f"{timeline.schedule}, {timeline.num_microbatches} micro-batches:"
        f" {quantity.seconds(timeline.makespan_seconds)},"
        f" {quantity.percent(timeline.bubble_fraction)} of the time idle,"
        f" activations of up to {live:.3g} micro-batches held by one stage."
    )
    if alike:
        note += " Stages are drawn alike: what imbalance costs is in the step's bubble alone."
    height = 120 + 30 * timeline.num_stages
    shown = doc.figure("time", planning_figures.pipeline_timeline(timeline), height)
    drawn = planning_figures.shown_seconds(timeline)
    if drawn < timeline.makespan_seconds:
        whole = quantity.seconds(timeline.makespan_seconds)
        part = f"Drawn are the first {quantity.seconds(drawn)} of {whole}."
        shown.append(doc.Only("page", [doc.Paragraph(part, "dim")]))
    if timeline.num_stages <= MOST_STAGES:
        shown.append(doc.Drawing(lambda columns: timeline_lines(timeline, columns)))
    return [doc.Chapter("One step of the pipeline", shown, note)]


def timeline_lines(timeline: Timeline, columns: int) -> list[list[tuple[str, str]]]:
    """A pipeline step so wide: one line per stage, `·` is idle.

    A cell shows what the stage does in the middle of it: the micro-batch, as a digit for its
    forward, a capital (A is 0) for its backward, a small letter for the weight half of it.
    """
    margin = len(f"stage {timeline.num_stages - 1} ")
    width = max(20, columns - margin)
    lines = [
        [(f"stage {rank}".ljust(margin), "dim"), *_stage(timeline, rank, width)]
        for rank in range(timeline.num_stages)
    ]
    legend: list[tuple[str, str]] = []
    for kind in ("forward", "backward"):
        signs, style = _CELLS[kind]
        legend += [(signs[0], style), (f" {kind}  ", "")]
    if any(block.kind == "weight" for block in timeline.blocks[0]):
        legend += [("a", _CELLS["weight"][1]), (" weight half  ", "")]
    return [*lines, [*legend, ("· idle", "")]]


def _stage(timeline: Timeline, rank: int, width: int) -> list[tuple[str, str]]:
    stage, place, cells = timeline.blocks[rank], 0, []
    for column in range(width):
        moment = (column + 0.5) / width * timeline.makespan_seconds
        while place < len(stage) and stage[place].end_seconds <= moment:
            place += 1
        if place == len(stage) or stage[place].start_seconds > moment:
            cells.append(("·", "dim"))
        else:
            signs, style = _CELLS[stage[place].kind]
            cells.append((signs[stage[place].microbatch % 10], style))
    return cells
