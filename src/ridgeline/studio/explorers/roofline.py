"""Which operators of a model wait for memory and which for arithmetic, on one device or several."""

from __future__ import annotations

from typing import cast

from ridgeline import quantity
from ridgeline.cost.operators import Phase
from ridgeline.plan.model_roofline import model_roofline
from ridgeline.records.roofline import DeviceRoofline, ModelRoofline
from ridgeline.report import document as doc
from ridgeline.report.views.roofline import device_table, measured_section, measured_sentence, note
from ridgeline.report.views.roofline_figures import roofline_figure, share_figure
from ridgeline.studio.explorer import (
    Explorer,
    Formula,
    OpenFile,
    Picture,
    Selection,
    Several,
    Slider,
    State,
)
from ridgeline.studio.listed import every_device, every_model


def command(state: State) -> list[str]:
    """The words that print the same."""
    file = state.file("run")
    named = [word for name in state.words("device") for word in ("--device", name)]
    return [
        "roofline",
        state.word("model"),
        *named,
        *("--phase", state.word("phase")),
        *("--batch", str(state.whole("batch"))),
        *("--seq", str(state.whole("seq"))),
        *([] if file is None else ["--measured", str(file)]),
    ]


def answer(state: State) -> ModelRoofline:
    """Every operator under the roofs."""
    return model_roofline(
        state.word("model"),
        state.words("device"),
        phase=cast("Phase", state.word("phase")),
        batch=state.whole("batch"),
        seq=state.whole("seq"),
        measured=state.file("run"),
    )


def draw(roof: ModelRoofline) -> Picture:
    """Roofs and operators, where the least time goes, and what each device comes to."""
    words = [_bound(one) for one in roof.devices]
    if roof.measured:
        words.append(measured_sentence(roof.measured))
    return Picture(
        sentence=" ".join(words),
        blocks=[
            doc.Chapter("Roofline", doc.figure("roofline", roofline_figure(roof), 480), note(roof)),
            *measured_section(roof),
            doc.Chapter("Where the least time goes", doc.figure("shares", share_figure(roof), 240)),
            doc.Chapter("Devices", [device_table(roof)]),
        ],
    )


def _bound(device: DeviceRoofline) -> str:
    longest = max(device.operators, key=lambda one: one.share)
    return (
        f"On {device.device} {quantity.percent(device.bound_share)} of the least time"
        f" ({quantity.seconds(device.seconds)}) is {device.bound}-bound; the longest"
        f" operator, “{longest.name}”, has"
        f" {quantity.digits(longest.intensity_flops_per_byte)} FLOP/byte"
        f" where the ridge is at {quantity.digits(device.ridge_flops_per_byte)}."
    )


EXPLORER = Explorer(
    place=3,
    title="Roofline",
    question="Does a model wait for memory or for arithmetic, and on which hardware?",
    inputs=(
        Selection(name="model", label="Model", options=every_model, default="Llama-3-8B"),
        Several(
            name="device",
            label="Devices",
            options=every_device,
            default=("H100-SXM-80GB", "A100-SXM-80GB"),
            most=4,
        ),
        Selection(
            name="phase",
            label="What it does",
            options={
                "train": "train: forward and backward",
                "prefill": "prefill: a prompt at once",
                "decode": "decode: one new token",
            },
            default="train",
        ),
        OpenFile(
            name="run", label="A measured run over it", records=("profile", "doctor", "tuning")
        ),
        Slider(
            name="batch", label="Sequences in a batch", default=1,
            stops=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
        ),
        Slider(
            name="seq", label="Tokens of each", default=4096,
            stops=(128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
        ),
    ),
    command=command,
    answer=answer,
    draw=draw,
    why=(
        Formula(
            text="attainable FLOP/s = min(peak FLOP/s, FLOP per byte × bytes/s)",
            source="Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009; cost/roofline.py",
        ),
        Formula(
            text="ridge = peak FLOP/s ÷ bytes/s: left of it memory decides, right of it arithmetic",
            source="the same; peaks and bandwidths with their sources in hardware/devices/",
        ),
        Formula(
            text="FLOPs and bytes of every operator from the model's shapes, each tensor read"
            " and written once",
            source="cost/operators.py",
        ),
    ),
)  # fmt: skip
