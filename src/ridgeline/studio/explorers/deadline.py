"""The frame of a perception pipeline against its deadline: stages, jitter, misses."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.plan.realtime.answer import read_source, simulate_realtime
from ridgeline.plan.realtime.changes import ALL
from ridgeline.records.realtime_simulation import RealtimeSimulation, SimulatedPipeline
from ridgeline.report import document as doc
from ridgeline.report.views.realtime_simulation import ages_figure, frame_figure, variant_table
from ridgeline.studio.explorer import (
    Explorer,
    Formula,
    Picture,
    Selection,
    Slider,
    State,
    Switch,
    written,
)

TABLE = "bevdet-r50"
FRAMES = 600
TENSORRT_GAIN = 2.38
"""The source's own PyTorch takes so many times as long as its TensorRT, both in FP32."""
SEPARATE = 3
"""Tasks that each have a pipeline of their own where nothing is shared."""


def change(state: State) -> str:
    """What is changed, as one what-if."""
    compiled = state.on("compiled")
    parts = [
        f"device={state.word('device')}",
        f"precision={state.word('precision') if compiled else 'fp32'}",
        *([] if compiled else [f"{ALL} x{TENSORRT_GAIN}"]),
        f"rate={written(state.number('rate'))}Hz",
        f"deadline={written(state.number('deadline'))}ms",
        f"image stage x{written(state.number('sparse'))}",
        f"jitter={written(state.number('jitter'))}",
        f"policy={state.word('policy')}",
        f"executor={'threads' if state.on('overlap') else 'inline'}",
        *([] if state.on("temporal") else ["without align"]),
        *([] if state.on("shared") else [f"streams={SEPARATE}"]),
    ]
    return ", ".join(parts)


def answer(state: State) -> RealtimeSimulation:
    """The pipeline as published, and as it was changed."""
    return simulate_realtime(read_source(TABLE), what_if=[change(state)], frames=FRAMES)


def draw(found: RealtimeSimulation) -> Picture:
    """The frame, ages, and a row for each variant."""
    return Picture(
        sentence=_bound(found.what_if[0]),
        blocks=[
            doc.Chapter(
                "One frame, stage by stage",
                doc.figure("frame", frame_figure(found), 260),
                "Dashed: the deadlines. A frame that comes before the last is done waits.",
            ),
            doc.Chapter(
                "How old results are", doc.figure("ages", ages_figure(found, "changed"), 300)
            ),
            doc.Chapter(
                "Variants", [variant_table(found, "changed"), doc.Paragraph(found.source, "dim")]
            ),
        ],
    )


def _bound(one: SimulatedPipeline) -> str:
    sink = max(one.sinks, key=lambda sink: sink.miss_share or 0.0)
    missed = quantity.percent(sink.miss_share or 0.0)
    age = "no result comes out" if sink.age is None else (
        f"results are {quantity.seconds(sink.age.p50)} old at the median,"
        f" {quantity.seconds(sink.age.p99)} at the 99th percentile"
    )  # fmt: skip
    return (
        f"{missed} of the frames miss {quantity.seconds(one.deadline_seconds or 0.0)}: {age}. The"
        f" work of a frame is {quantity.seconds(one.sum_seconds)}; {one.bound_by} bounds the rate"
        f" at {quantity.digits(one.bound_per_second)} frames per second."
    )


EXPLORER = Explorer(
    place=12,
    title="Deadline",
    question="Does a perception pipeline meet its frame of 33 ms, and what would make it?",
    inputs=(
        Selection(
            name="device", label="Device", default="Jetson AGX Orin",
            options={"Jetson AGX Orin": "Jetson AGX Orin", "RTX A4000": "RTX A4000"},
        ),
        Selection(
            name="precision", label="Precision", default="fp32",
            options={"fp32": "fp32", "fp16": "fp16", "int8": "int8"},
        ),
        Switch(name="compiled", label="TensorRT, or else PyTorch in fp32", default=True),
        Switch(name="overlap", label="Stages overlap (threads)"),
        Switch(name="temporal", label="Aligns with the frame before", default=True),
        Switch(name="shared", label="One backbone for three tasks", default=True),
        Slider(
            name="sparse", label="Tiles of the images that are computed", default=1.0,
            write=quantity.percent, stops=(0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
        ),
        Slider(
            name="jitter", label="Jitter: P99 over P50", default=1.2, write=quantity.ratio,
            stops=(1.0, 1.1, 1.2, 1.5, 2.0, 3.0),
        ),
        Slider(
            name="rate", label="Frames per second", default=30.0,
            stops=(10.0, 15.0, 20.0, 24.0, 30.0, 36.0, 45.0, 60.0),
        ),
        Slider(
            name="deadline", label="Deadline", default=33.3,
            stops=(16.7, 20.0, 25.0, 33.3, 40.0, 50.0, 66.7, 100.0),
            write=lambda value: f"{quantity.digits(value)} ms",
        ),
        Selection(
            name="policy", label="A frame that comes while one waits", default="latest-only",
            options={"latest-only": "takes its place", "block": "stops the sensor's reader",
                     "drop-oldest": "pushes out the oldest"},
        ),
    ),
    command=lambda state: [
        "realtime", "simulate", TABLE, "--what-if", change(state), "--frames", str(FRAMES),
    ],
    answer=answer,
    draw=draw,
    why=(
        Formula(
            text="frame's work = sum of its stages; rate ≤ 1 ÷ the busiest worker's work per frame",
            source="plan/realtime/event_loop.py plays every frame through the flow that runs it",
        ),
        Formula(
            text="jitter: log-normal times, the median kept, P99 where the slider says",
            source="plan/realtime/changes.py",
        ),
        Formula(
            text="stage times of BEVDet-R50 in TensorRT 8.5 by device and precision; PyTorch in"
            f" FP32 takes {TENSORRT_GAIN} times as long on the A4000, taken for both devices",
            source="LCH1238/bevdet-tensorrt-cpp, README, 2023-08-29",
        ),
        Formula(
            text="the image stage takes at best as much of its time as it computes of the tiles;"
            " gathering and scattering them comes on top, and is not counted",
            source="Ren et al., SBNet, arXiv 1801.02108",
        ),
    ),
    simulates=True,
)  # fmt: skip
