"""A perception system from its data to the vehicle: what each part costs, and what limits it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from ridgeline import quantity
from ridgeline.hardware.catalogue import devices
from ridgeline.plan.system_map import SystemQuestion, predict_system
from ridgeline.records.system_map import PartName, SystemMap
from ridgeline.report import document as doc
from ridgeline.report.views.system_map import (
    NOTE,
    TITLES,
    map_figure,
    part_blocks,
    part_table,
    shown_part,
)
from ridgeline.studio.explorer import Explorer, Formula, Picture, Selection, Slider, State, written

NETWORKS = (
    "resnet18", "resnet50", "resnet101", "mobilenet_v3_large", "efficientnet_b0", "convnext_tiny",
    "vit_base_patch16_224",
)  # fmt: skip
TRAINERS = ("V100-SXM2-32GB", "A100-SXM-80GB", "H100-SXM-80GB", "A10G", "L4", "RTX-4090")


def vehicles() -> Mapping[str, str]:
    """Modules that vehicles have."""
    return {one.name: one.name for one in devices() if one.name.startswith("Jetson-") and one.peaks}


def question(state: State) -> SystemQuestion:
    """What is asked of the system."""
    return SystemQuestion(
        model=state.word("model"),
        cluster=f"{state.whole('gpus')}x{state.word('device')}",
        vehicle=state.word("vehicle"),
        batch=state.whole("batch"),
        epochs=state.number("epochs"),
        cores_per_device=state.number("cores"),
        period_seconds=state.number("period"),
        precision=state.word("precision"),
        shown=cast("PartName", state.word("part")),
    )


def command(state: State) -> list[str]:
    """The words that print the same."""
    asked = question(state)
    return [
        *("predict", "system", "--model", asked.model, "--cluster", asked.cluster),
        *("--vehicle", asked.vehicle, "--batch", str(asked.batch)),
        *("--epochs", written(asked.epochs), "--cores-per-device", written(asked.cores_per_device)),
        *("--period", f"{written(asked.period_seconds)}s", "--precision", asked.precision),
        *("--part", asked.shown),
    ]


def draw(found: SystemMap) -> Picture:
    """The drawing, one part in full, and all parts in a line each."""
    part = shown_part(found)
    title = TITLES[part.part]
    return Picture(
        sentence=(
            f"{TITLES[found.tightest]} holds the system back: {found.why_tightest}."
            f" {title}: {part.headline}. {part.limit}"
        ),
        blocks=[
            doc.Chapter(
                "The system",
                doc.figure("map", map_figure(found), 360),
                f"{NOTE} Click a part, or choose it.",
            ),
            doc.Chapter(title, part_blocks(part)),
            doc.Chapter("All parts", [part_table(found)]),
        ],
    )


EXPLORER = Explorer(
    place=2,
    title="The system map",
    question="From data to the vehicle: which part holds a system back, and what does it cost?",
    inputs=(
        Selection(name="part", label="Part to look into", options=TITLES, default="training"),
        Slider(name="gpus", label="GPUs", default=8, stops=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512)),
        Selection(
            name="device", label="Trained and served on",
            options={name: name for name in TRAINERS}, default="A100-SXM-80GB",
        ),
        Selection(
            name="model", label="Network",
            options={name: name for name in NETWORKS}, default="resnet50",
        ),
        Selection(
            name="vehicle", label="Vehicle", options=vehicles, default="Jetson-AGX-Orin-64GB"
        ),
        Selection(
            name="precision", label="The vehicle's arithmetic",
            options={"fp32": "fp32", "fp16": "fp16", "int8": "int8"}, default="fp16",
        ),
        Slider(
            name="period", label="Time between frames", default=0.033,
            stops=(0.001, 0.002, 0.005, 0.01, 0.0167, 0.033, 0.05, 0.1), write=quantity.seconds,
        ),
        Slider(
            name="cores", label="Cores that decode, per GPU", default=12.0,
            stops=(0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0),
        ),
        Slider(
            name="batch", label="Images of a GPU", default=256, stops=(16, 32, 64, 128, 256, 512)
        ),
        Slider(name="epochs", label="Epochs", default=90.0, stops=(1.0, 10.0, 30.0, 90.0, 300.0)),
    ),
    command=command,
    answer=lambda state: predict_system(question(state)),
    draw=draw,
    why=(
        Formula(
            text="cores = images per second × (stored pixels ÷ decode rate + used pixels ÷ augment"
            " rate)",
            source="cost/vision/input_pipeline.py",
        ),
        Formula(
            text="latency = compute, memory and launches of every operator, fitted to published"
            " runs",
            source="cost/vision/work.py; error: docs/results/accuracy_vision.md",
        ),
        Formula(
            text="multipliers of techniques are medians over public scripts, measured by tune",
            source="records/measured_gains.toml; docs/results/public_tuned.md",
        ),
    ),
)  # fmt: skip
