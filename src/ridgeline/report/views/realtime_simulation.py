"""What `ridgeline realtime simulate` shows: the pipeline as it is, beside what it could be."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline import quantity
from ridgeline.records.realtime_simulation import (
    Bounds,
    NeededFactor,
    RealtimeSimulation,
    SimulatedPipeline,
    SimulatedSink,
    TargetAnswer,
)
from ridgeline.report import document as doc
from ridgeline.report.plots import (
    LOOKS,
    Figure,
    bar_plot,
    bars,
    limit_line,
    plain_text,
    plot_layout,
    rounded,
)

_PATTERNS = ("", "/", "\\", "x", "-", "+")

VARIANTS_NOTE = (
    "Age: from the sensor's stamp until the result is out. Most/s: what the busiest worker can do"
    " when stages overlap. In brackets: 95 of 100 runs of so many frames."
)
STAGES_NOTE = "Wait: from the moment at which a call's inputs lay there until it began."
TARGET_NOTE = "The largest share of its time that a stage may keep, by itself, to meet the target."


def realtime_simulation_document(found: RealtimeSimulation) -> doc.ReportDocument:
    """The variants side by side, the stages as they are, what the target takes."""
    shown: list[doc.Block] = [
        doc.Lead(found.pipeline, found.source, "Simulation"),
        doc.Values(_headline(found)),
        doc.Chapter("What if" if found.what_if else "As it is", [_variants(found)], VARIANTS_NOTE),
        doc.Only("page", doc.figure("ages", ages_figure(found), 320)),
        doc.Chapter("Stages as it is", [_stages(found.base)], STAGES_NOTE),
        *_losses(found),
    ]
    if found.target is not None:
        shown.append(_target(found.target))
    shown.append(doc.Lines(found.notes, "warning"))
    return doc.ReportDocument(f"Simulation of {found.pipeline}", shown)


def _headline(found: RealtimeSimulation) -> list[tuple[str, doc.Words]]:
    base = found.base
    pairs: list[tuple[str, doc.Words]] = [("frames", quantity.count(found.frames))]
    if base.deadline_seconds is not None:
        pairs.append(("deadline", quantity.seconds(base.deadline_seconds)))
    total = quantity.seconds(base.sum_seconds)
    if found.published_total_seconds:
        apart = base.sum_seconds / found.published_total_seconds - 1.0
        total += f" ({quantity.change(apart)} of its source)"
    pairs.append(("all stages", total))
    if base.bound_per_second:
        pairs.append(("most/s", f"{quantity.digits(base.bound_per_second)}, {base.bound_by}"))
    return pairs


def _variants(found: RealtimeSimulation) -> doc.DataTable:
    """A row per variant and sink, the run itself first."""
    several = len(found.base.sinks) > 1 or any(len(one.sinks) > 1 for one in found.what_if)
    columns = (
        doc.words("variant", ""),
        doc.words("sink"),
        doc.Column("p50_seconds", "age P50"),
        doc.figures("age P99")[0],
        doc.Column("worst_seconds", "worst", wide=True),
        *doc.figures("missed", "dropped", "results/s"),
        doc.Column("most/s", "most/s", wide=True),
        doc.words("bound_by", "bound by", wide=True),
    )
    rows: list[doc.TableRow] = []
    for sink in found.measured:
        rows.append(_row("measured", sink, None, several=several))
    variants = [("simulated", found.base)]
    variants += [(one.change, one) for one in found.what_if]
    if found.together is not None:
        variants.append(("all together", found.together))
    for name, one in variants:
        for place, sink in enumerate(one.sinks):
            rows.append(_row("" if place else name, sink, one, several=several))
    return doc.DataTable(columns, rows)


def _row(
    name: str, sink: SimulatedSink, of: SimulatedPipeline | None, *, several: bool
) -> doc.TableRow:
    age = sink.age
    cells: tuple[doc.Cell, ...] = (
        name,
        sink.sink if several else None,
        age.p50 if age else "–",
        f"{quantity.seconds(age.p99)} {_bounds(age.p99_interval)}" if age else "–",
        age.worst if age else None,
        _share(sink, of),
        quantity.count(sink.dropped) if sink.dropped else "0",
        quantity.digits(sink.results_per_second),
        quantity.digits(of.bound_per_second) if of and of.bound_per_second else None,
        of.bound_by if of else None,
    )
    return doc.TableRow(cells, "dim" if of is None else "")


def _share(sink: SimulatedSink, of: SimulatedPipeline | None) -> doc.Words:
    if sink.miss_share is None or sink.miss_interval is None:
        return "–"
    low, high = sink.miss_interval
    text = quantity.percent(sink.miss_share)
    if high > low:
        text += f" [{100 * low:.3g}, {100 * high:.3g}]"
    if of is None:
        return text
    return doc.Phrase(text, "bad" if sink.miss_share > 0.0 else "good")


def _bounds(bounds: Bounds) -> str:
    """Both ends in milliseconds; nothing where there is no interval."""
    low, high = bounds
    if high - low <= 1e-6 * high:
        return ""
    return f"[{quantity.digits(low * 1e3)}, {quantity.digits(high * 1e3)}]"


def _stages(base: SimulatedPipeline) -> doc.DataTable:
    columns = (
        doc.words("stage"),
        doc.Column("p50_seconds", "P50"),
        doc.Column("p99_seconds", "P99"),
        doc.Column("wait_p99_seconds", "wait P99"),
        doc.Column("busy_share", "busy"),
        doc.Column("deadline_share", "of deadline"),
    )
    limit = base.deadline_seconds
    rows = [
        (
            one.stage,
            one.p50_seconds,
            one.p99_seconds,
            one.wait_p99_seconds,
            one.busy_share,
            one.p50_seconds / limit if limit and one.p50_seconds is not None else None,
        )
        for one in base.stages
    ]
    return doc.DataTable(columns, rows)


def _losses(found: RealtimeSimulation) -> list[doc.Block]:
    """Where frames are lost, per variant."""
    rows = [
        (name, where, frames)
        for name, one in (
            ("as it is", found.base),
            *((one.change, one) for one in found.what_if),
            *((("all together", found.together),) if found.together else ()),
        )
        for sink in one.sinks
        for where, frames in sink.losses.items()
    ]
    if not rows:
        return []
    columns = (doc.words("variant", ""), doc.words("where", "where and why"), doc.Column("frames"))
    return [doc.Chapter("Frames that are lost", [doc.DataTable(columns, rows)])]


def _target(target: TargetAnswer) -> doc.Chapter:
    title = (
        f"What {quantity.seconds(target.target_seconds)} takes, with"
        f" {quantity.percent(target.max_miss)} of the frames missing it at most"
    )
    if target.met:
        return doc.Chapter(title, [doc.Paragraph("Nothing: the pipeline meets it as it is.")])
    columns = (
        doc.words("stage", "faster"),
        doc.Column("now_seconds", "now"),
        doc.Column("needed_seconds", "needed"),
        doc.figures("factor")[0],
    )
    return doc.Chapter(
        title, [doc.DataTable(columns, [_factor(one) for one in target.factors])], TARGET_NOTE
    )


def _factor(one: NeededFactor) -> tuple[doc.Cell, ...]:
    factor: doc.Words = doc.Phrase("not by itself", "dim")
    if one.factor is not None:
        factor = f"x{quantity.digits(one.factor)}"
    return (one.stage or "all stages alike", one.now_seconds, one.needed_seconds, factor)


def ages_figure(found: RealtimeSimulation, changed: str = "") -> Figure | None:
    """Ages of every variant at its first sink, P50 to P99, with the deadline as a line.

    `changed` names a variant whose own words would be too many.
    """
    variants = [("as it is", found.base), *((changed or one.change, one) for one in found.what_if)]
    if found.together is not None:
        variants.append(("all together", found.together))
    drawn = [(name, one.sinks[0].age) for name, one in variants if one.sinks[0].age is not None]
    if not drawn:
        return None
    names = [plain_text(name) for name, _ in drawn]
    layout = plot_layout("", "ms from stamp to result")
    layout["yaxis"]["rangemode"] = "tozero"
    layout["barmode"] = "group"
    if found.base.deadline_seconds is not None:
        layout["shapes"] = [limit_line(y=rounded(found.base.deadline_seconds * 1e3), width=1.5)]
    return {"data": [_bars("P50", names, [age.p50 for _, age in drawn if age], "--accent"),
                     _bars("P99", names, [age.p99 for _, age in drawn if age], "--optimizer")],
            "layout": layout}  # fmt: skip


def _bars(name: str, names: Sequence[str], seconds: Sequence[float], color: str) -> Figure:
    return {
        "type": "bar",
        "name": name,
        "x": list(names),
        "y": [rounded(one * 1e3) for one in seconds],
        "marker": {"color": color},
        "hovertemplate": f"{name} %{{y:.4g}} ms<extra>%{{x}}</extra>",
    }


def variant_table(found: RealtimeSimulation, changed: str) -> doc.DataTable:
    """The pipeline as it is and as it was changed: ages, misses and bounds."""
    columns = (
        doc.words("variant", ""),
        doc.Column("p50_seconds", "age P50"),
        doc.Column("p99_seconds", "age P99"),
        doc.Column("miss_share", "missed"),
        doc.Column("dropped", "dropped"),
        doc.Column("rate", "results/s"),
        doc.words("bound_by", "bound by"),
    )
    rows = [
        (name, sink.age.p50 if sink.age else None, sink.age.p99 if sink.age else None,
         sink.miss_share, sink.dropped, sink.results_per_second, one.bound_by)
        for name, one in (("as it is", found.base), *((changed, one) for one in found.what_if))
        for sink in one.sinks
    ]  # fmt: skip
    return doc.DataTable(columns, rows)


def frame_figure(found: RealtimeSimulation) -> Figure:
    """A frame of every variant, stage after stage, against its deadline."""
    variants = [("as it is", found.base), *((one.change, one) for one in found.what_if)]
    names = ["as it is", *("changed" for _ in found.what_if)]
    stages = list(dict.fromkeys(stage.stage for _, one in variants for stage in one.stages))
    traces: list[Figure] = []
    for place, name in enumerate(stages):
        seconds = [
            next((own.p50_seconds for own in one.stages if own.stage == name), None)
            for _, one in variants
        ]
        traces.append(
            bars(
                names,
                [None if one is None else one * 1e3 for one in seconds],
                name=plain_text(name),
                color=LOOKS[place % len(LOOKS)].color,
                pattern=_PATTERNS[place % len(_PATTERNS)],
                hover="%{x:.4g} ms",
            )
        )
    limits = {one.deadline_seconds for _, one in variants if one.deadline_seconds is not None}
    shapes = [limit_line(x=rounded(1e3 * at)) for at in sorted(limits)]
    return bar_plot(traces, "ms of work, at the median", shapes=shapes)
