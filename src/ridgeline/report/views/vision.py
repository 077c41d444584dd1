"""What `ridgeline predict training` and `predict inference` show of a network for images."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline import quantity
from ridgeline.records.estimate import CoefficientChange
from ridgeline.records.vision_estimate import (
    DataParallelPoint,
    Deadline,
    InputPipeline,
    VisionInferenceEstimate,
    VisionMemory,
    VisionRun,
    VisionTrainingEstimate,
)
from ridgeline.report import document as doc
from ridgeline.report.plots import Figure, line, looks, plot_layout
from ridgeline.report.views.layout_names import plain_term
from ridgeline.report.views.predict_training import VERDICTS, term_table

BOUNDS = {
    "compute": "arithmetic",
    "memory": "activation traffic",
    "launches": "launching operators",
    "communication": "reducing gradients",
    "input": "loading images",
}
"""What bounds a step, in words."""
DEADLINES = {
    "yes": doc.Phrase("meets the frame", "good"),
    "uncertain": doc.Phrase("may miss the frame", "warning"),
    "no": doc.Phrase("misses the frame", "bad"),
}


def vision_training_document(found: VisionTrainingEstimate) -> doc.ReportDocument:
    """The step, its memory, what feeds it, the whole run, and what was assumed."""
    title = f"{found.model} on {found.cluster}"
    low, high = (quantity.seconds(end) for end in found.interval)
    pairs: list[tuple[str, doc.Words]] = [
        ("80 % interval", f"{low} – {high}"),
        ("images/s", quantity.count(found.images_per_second)),
        ("images/s/device", quantity.count(found.images_per_second_per_gpu)),
        ("MFU", quantity.percent(found.mfu)),
        ("peak memory", quantity.memory(found.memory.peak_bytes)),
        ("bound by", BOUNDS[found.bound]),
    ]
    blocks: list[doc.Block] = [
        doc.Lead(
            title=f"{quantity.seconds(found.step_seconds)} per step",
            subtitle=setting_name(found),
            origin=doc.Phrase(title, "strong"),
            chip=VERDICTS[found.memory.verdict],
        ),
        doc.Values(pairs),
        term_table("Step", found.breakdown, found.step_seconds),
        *_memory(found.memory, found.batch),
        doc.Chapter("Images that must arrive", [doc.Lines(_input_lines(found.input))]),
    ]
    scaling = _scaling_line(found)
    if scaling:
        drawn = doc.figure("scaling", _efficiency(found.scaling))
        table = _scaling_table(found)
        blocks.append(doc.Chapter("Data parallelism", [doc.Lines([scaling]), *drawn, table]))
    if found.run is not None:
        blocks.append(doc.Chapter("The whole run", [doc.Lines(run_lines(found.run))]))
    blocks.append(doc.Chapter("Assumed, not measured or given", [doc.Lines(found.assumed)]))
    blocks += _measured(found.calibrated)
    return doc.ReportDocument(title, blocks)


def _measured(changes: Sequence[CoefficientChange]) -> list[doc.Block]:
    if not changes:
        return []
    lines = [f"{one.name}: {one.before:.4g} → {one.after:.4g}, as measured" for one in changes]
    return [doc.Chapter("Moved by what you measured", [doc.Lines(lines)])]


def vision_inference_document(found: VisionInferenceEstimate) -> doc.ReportDocument:
    """Latency and throughput, where the time goes, and what would change it."""
    title = f"{found.model} on {found.device}"
    low, high = (quantity.seconds(end) for end in found.interval)
    pairs: list[tuple[str, doc.Words]] = [
        ("80 % interval", f"{low} – {high}"),
        ("images/s", quantity.count(found.images_per_second)),
        ("MFU", quantity.percent(found.mfu)),
        ("memory", quantity.memory(found.memory.peak_bytes)),
        ("largest batch", quantity.count(found.memory.largest_batch)),
        ("bound by", BOUNDS[found.bound]),
    ]
    chip = VERDICTS[found.memory.verdict]
    if found.deadline is not None and found.memory.verdict != "oom":
        chip = DEADLINES[found.deadline.met]
    blocks: list[doc.Block] = [
        doc.Lead(
            title=f"{quantity.seconds(found.latency_seconds)} per call",
            subtitle=setting_name(found),
            origin=doc.Phrase(title, "strong"),
            chip=chip,
        ),
        doc.Values(pairs),
    ]
    if found.deadline is not None:
        blocks.append(doc.Paragraph(_deadline_line(found.deadline), "strong"))
    blocks += [
        doc.Lines(found.notes, "warning"),
        term_table("Call", found.breakdown, found.latency_seconds),
    ]
    if found.changes:
        columns = (
            doc.words("change", "instead"),
            doc.Column("latency_seconds", "per call"),
            doc.Column("faster_ratio", "faster"),
        )
        rows = [(one.change, one.latency_seconds, one.times_faster) for one in found.changes]
        blocks.append(doc.Chapter("What would change it", [doc.DataTable(columns, rows)]))
    if found.assumed:
        blocks.append(doc.Chapter("Assumed, not measured or given", [doc.Lines(found.assumed)]))
    blocks += _measured(found.calibrated)
    return doc.ReportDocument(title, blocks)


def setting_name(found: VisionTrainingEstimate | VisionInferenceEstimate) -> str:
    """How a network runs, in one line."""
    height, width = found.image_size
    size = f"{height} px" if height == width else f"{height} x {width} px"
    parts = [f"batch {found.batch}"]
    if isinstance(found, VisionTrainingEstimate) and found.global_batch != found.batch:
        parts.append(f"global {found.global_batch:,}")
    parts += [size, found.precision, found.memory_format, found.software]
    if isinstance(found, VisionTrainingEstimate):
        parts.append(found.optimizer)
    return " · ".join(parts)


def run_lines(run: VisionRun) -> list[doc.Words]:
    """Time, device-hours and money of a whole run."""
    low, high = (quantity.hours(end) for end in run.run_interval)
    spent = [f"{run.device_hours:,.1f} device-hours"]
    if run.usd is not None:
        spent.append(f"{quantity.usd(run.usd)} at ${run.usd_per_device_hour:.2f} an hour")
    if run.kilowatt_hours is not None:
        spent.append(f"{run.kilowatt_hours:,.1f} kWh of the devices")
    told = (
        f" for {run.epochs:g} epochs of {quantity.count(run.images)} images"
        f" (80 % interval {low} – {high}), {quantity.seconds(run.epoch_seconds)} an epoch,"
        f" {run.steps:,} steps"
    )
    return [(doc.Phrase(quantity.hours(run.run_seconds), "strong"), told), " · ".join(spent)]


def _memory(memory: VisionMemory, batch: int) -> list[doc.Block]:
    note = (
        f"Peak {quantity.memory(memory.peak_bytes)} of {quantity.memory(memory.capacity_bytes)}:"
        f" {VERDICTS[memory.verdict].text}; {memory.largest_batch:,} images of one device fit."
    )
    terms = {name: size for name, size in memory.terms.items() if size}
    chosen = looks(terms)
    parts = [
        doc.BarPart(plain_term(name), size, quantity.memory(size), chosen[name])
        for name, size in terms.items()
    ]
    legend = doc.DataTable(
        (doc.words("for"), doc.Column("bytes", f"batch {batch}")),
        [(doc.Key(plain_term(name), chosen[name]), size) for name, size in terms.items()],
    )
    bar = doc.Bar("device", quantity.memory(memory.peak_bytes), parts)
    columns = (
        doc.name("layer"),
        doc.words("written by"),
        doc.Column("tensors"),
        doc.Column("bytes each number"),
        doc.Column("total_bytes", "kept"),
    )
    rows = [
        (one.layer, one.written_by or "the images", str(one.count), str(one.element_bytes),
         one.total_bytes)
        for one in memory.layers
    ]  # fmt: skip
    kept = doc.DataTable(columns, rows, title="Kept for the backward pass, largest first")
    return [
        doc.Chapter("Memory", [doc.Bars([bar], legend, limit=memory.capacity_bytes), kept], note)
    ]


def _input_lines(pipeline: InputPipeline) -> list[doc.Words]:
    cores = f"{pipeline.decode_cores:,.1f} cores to decode and augment"
    if pipeline.cores_given is not None:
        cores += f", of {pipeline.cores_given:g}"
    storage = quantity.scaled(pipeline.storage_bytes_per_second, "B/s")
    copied = quantity.scaled(pipeline.host_to_device_bytes_per_second, "B/s")
    return [f"{cores} · {storage} from storage · {copied} to the devices"]


def _scaling_line(found: VisionTrainingEstimate) -> str:
    if found.cluster.startswith("1x"):
        return ""
    return (
        f"all-reduce of the gradients {quantity.seconds(found.all_reduce_seconds)}, of which"
        f" {quantity.seconds(found.breakdown['communication'])} is exposed or slows the backward"
        f" pass; a device does {quantity.percent(found.scaling_efficiency)} of what it does alone"
    )


def _scaling_table(found: VisionTrainingEstimate) -> doc.DataTable:
    columns = (
        *doc.figures("devices", "global batch", "images/s"),
        doc.Column("exposed_seconds", "exposed"),
        doc.Column("share", "efficiency"),
    )
    rows = [
        doc.TableRow(
            (
                str(one.num_devices),
                f"{one.global_batch:,}",
                quantity.count(one.images_per_second),
                one.exposed_seconds,
                one.efficiency,
            ),
            "good" if one.global_batch == found.global_batch else "",
        )
        for one in found.scaling
    ]
    return doc.DataTable(columns, rows)


def _efficiency(points: Sequence[DataParallelPoint]) -> Figure:
    """Efficiency over the number of devices, each with the same batch."""
    plot = line(
        "same batch per device",
        [point.num_devices for point in points],
        [100 * point.efficiency for point in points],
        "--accent",
        "%{x} devices: %{y:.3g} %",
        mode="lines+markers",
    )
    layout = plot_layout("devices", "efficiency, %")
    layout["xaxis"]["type"] = "log"
    layout["yaxis"]["range"] = [0, 105]
    return {"data": [plot], "layout": layout}


def _deadline_line(deadline: Deadline) -> str:
    period = quantity.seconds(deadline.period_seconds)
    share = quantity.percent(abs(deadline.margin_seconds) / deadline.period_seconds)
    amount = f"{quantity.seconds(abs(deadline.margin_seconds))} ({share})"
    left = "left" if deadline.margin_seconds >= 0 else "too much"
    sure = {
        "yes": "over the whole interval",
        "uncertain": "but the period lies inside the interval",
        "no": "over the whole interval",
    }[deadline.met]
    return f"a frame every {period}: {amount} {left}, {sure}"
