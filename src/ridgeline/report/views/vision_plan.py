"""What `ridgeline plan training` and `plan inference` show of a network for images."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.records.plan import KnobValue
from ridgeline.records.vision_plan import (
    InferenceOption,
    VisionCandidate,
    VisionInferencePlan,
    VisionTrainingPlan,
)
from ridgeline.report import document as doc
from ridgeline.report.plots import Figure, line, plain_text, plot_layout
from ridgeline.report.views.plan_training import knob_table
from ridgeline.report.views.vision import BOUNDS, vision_training_document


def vision_training_plan_document(plan: VisionTrainingPlan) -> doc.ReportDocument:
    """The best, the best of every cluster, what each knob is worth."""
    best = vision_training_document(plan.best)
    height, width = plan.image_size
    title = f"{plan.model}, {height} x {width}, {plan.epochs:g} epochs, kept low: {plan.objective}"
    note = f"{plan.searched:,} judged, {plan.feasible:,} feasible, in {plan.seconds:.2g} s."
    lead, *others = best.blocks
    blocks: list[doc.Block] = [
        lead,
        doc.Chapter(
            "The best of every cluster",
            [*doc.figure("clusters", _time_and_cost(plan)), _clusters(plan.clusters)],
            note,
        ),
        *_knob_chapter(plan.knobs),
        doc.Lines(_left_out(plan.without_ground), "dim"),
        *others,
    ]
    return doc.ReportDocument(title, blocks)


def vision_inference_plan_document(plan: VisionInferencePlan) -> doc.ReportDocument:
    """The best, the best of every device, and which devices cannot."""
    best = plan.best
    asked = []
    if plan.images_per_second is not None:
        asked.append(f"{quantity.count(plan.images_per_second)} images/s")
    if plan.deadline_seconds is not None:
        asked.append(f"within {quantity.seconds(plan.deadline_seconds)}")
    title = f"{plan.model}, {', '.join(asked)}"
    note = f"{plan.searched:,} judged, {plan.feasible:,} good enough, in {plan.seconds:.2g} s."
    lead = doc.Lead(
        title=f"{best.num_devices} x {best.device}",
        subtitle=_settings(best),
        origin=doc.Phrase(title, "strong"),
        chip=doc.Phrase(f"answers in {quantity.seconds(best.response_seconds)}", "good"),
    )
    blocks: list[doc.Block] = [
        lead,
        doc.Chapter("The best of every device", [_options(plan.options)], note),
    ]
    if plan.missed:
        blocks.append(doc.Chapter("Too slow", [doc.Lines(plan.missed)]))
    blocks.append(doc.Lines(_left_out(plan.without_ground), "dim"))
    blocks.append(doc.Chapter("Assumed, not measured or given", [doc.Lines(plan.assumed)]))
    return doc.ReportDocument(title, blocks)


def _clusters(candidates: list[VisionCandidate]) -> doc.DataTable:
    columns = (
        doc.words("cluster"),
        doc.words("how"),
        *doc.figures("whole run"),
        doc.Column("usd", "cost"),
        *doc.figures("slower", "dearer"),
        doc.Column("images/s", "images/s", wide=True),
        doc.Column("interval", "80 % interval", wide=True),
        doc.words("why", wide=True),
    )
    rows = []
    for place, candidate in enumerate(candidates):
        one = candidate.estimate
        assert one.run is not None
        low, high = (quantity.hours(end) for end in one.run.run_interval)
        dearer = candidate.times_dearer
        rows.append(
            doc.TableRow(
                (
                    one.cluster,
                    f"{one.batch} · {one.precision} · {one.memory_format} · {one.software}",
                    quantity.hours(one.run.run_seconds),
                    one.run.usd,
                    quantity.ratio(candidate.times_slower),
                    None if dearer is None else quantity.ratio(dearer),
                    quantity.count(one.images_per_second),
                    f"{low} – {high}",
                    candidate.why,
                ),
                "" if place else "good",
            )
        )
    return doc.DataTable(columns, rows)


def _time_and_cost(plan: VisionTrainingPlan) -> Figure | None:
    """Cost of the run over its time, one point a cluster; None where no price is on record."""
    priced = [
        (one.estimate, one.estimate.run)
        for one in plan.clusters
        if one.estimate.run is not None and one.estimate.run.usd is not None
    ]
    if len(priced) < 2:
        return None
    points = line(
        "clusters",
        [run.run_seconds / 3600 for _, run in priced],
        [run.usd or 0.0 for _, run in priced],
        "--accent",
        "%{text}<br>%{x:.3g} h, $%{y:.4g}",
        mode="markers+text",
        text=[plain_text(one.cluster) for one, _ in priced],
        textposition="top center",
        marker={"color": "--accent", "size": 10},
    )
    layout = plot_layout("hours of the whole run", "$ of the whole run")
    layout["xaxis"]["rangemode"] = layout["yaxis"]["rangemode"] = "tozero"
    return {"data": [points], "layout": layout}


def _knob_chapter(knobs: list[KnobValue]) -> list[doc.Block]:
    if not knobs:
        return []
    note = "The best that is left on the best cluster when one knob is held; 1.00 is the best."
    return [doc.Chapter("What each knob is worth", [knob_table(knobs)], note)]


def _options(options: list[InferenceOption]) -> doc.DataTable:
    columns = (
        doc.words("device"),
        doc.words("how"),
        doc.Column("latency_seconds", "latency"),
        doc.Column("response_seconds", "answered in"),
        *doc.figures("images/s", "devices", "$/h", "$/1M images"),
        doc.words("bound by"),
    )
    rows = [
        doc.TableRow(
            (
                one.device,
                _settings(one),
                one.latency_seconds,
                one.response_seconds,
                quantity.count(one.images_per_second),
                str(one.num_devices),
                None if one.usd_per_hour is None else quantity.usd(one.usd_per_hour),
                None
                if one.usd_per_million_images is None
                else quantity.usd(one.usd_per_million_images),
                BOUNDS[one.bound],
            ),
            "" if place else "good",
        )
        for place, one in enumerate(options)
    ]
    return doc.DataTable(columns, rows)


def _settings(one: InferenceOption) -> str:
    return f"batch {one.batch} · {one.precision} · {one.memory_format} · {one.software}"


def _left_out(without_ground: list[str]) -> list[str]:
    return [f"left out: {line}" for line in without_ground]
