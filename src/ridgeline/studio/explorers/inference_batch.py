"""Latency and throughput of inference over the batch: fusion, precision, knee and time allowed."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.models.vision.presets import network_names
from ridgeline.plan.vision.batches import batch_curves
from ridgeline.records.batch_curve import BatchCurves
from ridgeline.report import document as doc
from ridgeline.report.views.batch_curve import (
    curve_table,
    knee_sentence,
    latency_figure,
    throughput_figure,
)
from ridgeline.studio.explorer import (
    Explorer,
    Formula,
    Picture,
    Selection,
    Several,
    Slider,
    State,
    Switch,
    written,
)
from ridgeline.studio.listed import training_devices

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def command(state: State) -> list[str]:
    """The words that print the same."""
    return [
        "predict",
        "inference",
        *("--model", state.word("model")),
        *("--device", state.word("device")),
        *("--batches", ",".join(str(batch) for batch in BATCHES)),
        *("--software", ",".join(state.words("software"))),
        *("--precision", state.word("precision")),
        *("--image", str(state.whole("image"))),
        *("--memory-format", _layout(state)),
        *("--period", written(state.number("slo"))),
    ]


def answer(state: State) -> BatchCurves:
    """Every batch under every software."""
    return batch_curves(
        state.word("model"),
        state.word("device"),
        BATCHES,
        software=state.words("software"),
        image_size=state.whole("image"),
        precision=state.word("precision"),
        memory_format=_layout(state),
        within_seconds=state.number("slo"),
    )


def _layout(state: State) -> str:
    return "channels_last" if state.on("channels_last") else "contiguous"


def draw(found: BatchCurves) -> Picture:
    """Throughput and latency over the batch."""
    words = [knee_sentence(one, found.within_seconds) for one in found.curves]
    first = found.curves[0].points[0].estimate
    bound = f"At batch 1 {found.curves[0].software} is bound by {first.bound}."
    return Picture(
        sentence=f"{'. '.join(words)}. {bound}",
        blocks=[
            doc.Chapter(
                "Throughput",
                doc.figure("throughput", throughput_figure(found), 320),
                "Dotted: the knee, from which more images only wait longer.",
            ),
            doc.Chapter(
                "Latency",
                doc.figure("latency", latency_figure(found), 320),
                "Dashed: the time in which a batch has to be answered.",
            ),
            doc.Chapter("Every point", [curve_table(found)]),
        ],
    )


EXPLORER = Explorer(
    place=10,
    title="Inference batch",
    question="How large a batch is worth it, and when does it answer too late?",
    inputs=(
        Selection(
            name="model", label="Network", default="resnet50",
            options=lambda: {name: name for name in network_names()},
        ),
        Selection(
            name="device", label="Device", options=training_devices, default="A100-SXM-80GB"
        ),
        Several(
            name="software", label="What runs it", default=("eager", "compile", "tensorrt"),
            options={
                "eager": "eager: one kernel for each operator",
                "compile": "compile: chains fused",
                "tensorrt": "TensorRT: fused and tuned",
            },
        ),
        Selection(
            name="precision", label="Precision", default="fp16",
            options={"fp32": "fp32", "fp16": "fp16", "int8": "int8"},
        ),
        Switch(name="channels_last", label="Channels last"),
        Slider(
            name="image", label="Side of an image, pixels", default=224,
            stops=(160, 192, 224, 256, 320, 384, 448),
        ),
        Slider(
            name="slo", label="A batch must be answered within", default=0.02,
            stops=(0.002, 0.005, 0.01, 0.02, 0.033, 0.05, 0.1, 0.2),
            write=quantity.seconds,
        ),
    ),
    command=command,
    answer=answer,
    draw=draw,
    why=(
        Formula(
            text="latency = the longer of launches and the sum of kernels, each at the rate that"
            " the roof allows and the software reaches",
            source="cost/vision/estimate.py; fitted to published runs, docs/results",
        ),
        Formula(
            text="knee: the smallest batch with nine tenths of the largest throughput",
            source="plan/vision/batches.py",
        ),
    ),
)  # fmt: skip
