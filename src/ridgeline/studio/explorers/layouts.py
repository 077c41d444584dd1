"""A training run on a grid of devices: what each one holds and sends, and what a step takes."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.cost.pipeline_schedule import timeline_of
from ridgeline.hardware.cluster import parse_cluster
from ridgeline.plan.explain import TERMS
from ridgeline.plan.training.estimate import predict_training
from ridgeline.plan.training.filled_layout import filled_layout
from ridgeline.records.estimate import Estimate
from ridgeline.report import document as doc
from ridgeline.report.views.device_grid import (
    grid_figure,
    grid_note,
    traffic_figure,
    traffic_table,
)
from ridgeline.report.views.layout_names import layout_name
from ridgeline.report.views.planning_figures import (
    memory_by_stage,
    pipeline_timeline,
    step_breakdown,
)
from ridgeline.studio.explorer import Explorer, Formula, Picture, Selection, Slider, State
from ridgeline.studio.listed import language_models, training_devices

DEGREES = (1, 2, 4, 8, 16)


def cluster(state: State) -> str:
    """The cluster as one types it."""
    return f"{state.whole('gpus')}x{state.word('device')}"


def command(state: State) -> list[str]:
    """The words that print the same."""
    return [
        *("predict", "training", "--model", state.word("model"), "--cluster", cluster(state)),
        *("--tp", str(state.whole("tp")), "--pp", str(state.whole("pp"))),
        *("--vpp", str(state.whole("vpp")), "--cp", str(state.whole("cp"))),
        *("--ep", str(state.whole("ep")), "--zero", state.word("zero")),
        *("--recompute", state.word("recompute"), "--precision", state.word("precision")),
        *("--micro-batch", str(state.whole("micro_batch")), "--seq", str(state.whole("seq"))),
        *("--global-batch", str(state.whole("global_batch"))),
    ]


def answer(state: State) -> Estimate:
    """The step under this layout."""
    place = parse_cluster(cluster(state))
    layout = filled_layout(
        place,
        zero=int(state.word("zero")),
        recompute=state.word("recompute"),
        precision=state.word("precision"),
        **{
            name: state.whole(name)
            for name in ("tp", "pp", "vpp", "cp", "ep", "micro_batch", "global_batch")
        },
    )
    return predict_training(state.word("model"), place, seq=state.whole("seq"), layout=layout)


def draw(found: Estimate) -> Picture:
    """The grid, what a device holds, what it sends, and where the step goes."""
    timeline = timeline_of(found)
    pipeline: list[doc.Block] = []
    if timeline is not None:
        drawn = doc.figure("time", pipeline_timeline(timeline), 360)
        pipeline = [doc.Chapter("One step of the pipeline", drawn)]
    named = [(layout_name(found.layout), found)]
    steps = step_breakdown(named)
    for trace in steps["data"]:
        trace["y"] = ["step"]
    return Picture(
        sentence=_bound(found),
        blocks=[
            doc.Chapter(
                "The devices",
                doc.figure("grid", grid_figure(found.layout), 300),
                grid_note(found.layout),
            ),
            doc.Chapter(
                "What a device holds",
                doc.figure("memory", memory_by_stage(found.memory), 340),
                "By pipeline stage; the dashed line is what the device has.",
            ),
            doc.Chapter(
                "What a device sends",
                [*doc.figure("traffic", traffic_figure(found), 220), traffic_table(found)],
                "In one step, whether other work hides it or not; and what of it nothing hides.",
            ),
            doc.Chapter("Where a step goes", doc.figure("breakdown", steps, 200)),
            *pipeline,
        ],
    )


def _bound(found: Estimate) -> str:
    verdict = {"fits": "fits", "tight": "barely fits", "oom": "does not fit"}
    words = TERMS[found.bottleneck][0]
    return (
        f"A step takes {quantity.seconds(found.step_seconds)}, most of it for"
        f" {words}; the devices reach {quantity.percent(found.mfu)} of their"
        f" peak (MFU). The fullest one holds {quantity.memory(found.memory.peak_bytes)} of"
        f" {quantity.memory(found.memory.capacity_bytes)}: it {verdict[found.memory.verdict]}."
    )


EXPLORER = Explorer(
    place=7,
    title="Layouts",
    question="How is a model spread over GPUs, and what does each one hold and send?",
    inputs=(
        Selection(name="model", label="Model", options=language_models, default="Llama-3-8B"),
        Selection(name="device", label="Device", options=training_devices, default="H100-SXM-80GB"),
        Slider(
            name="gpus", label="GPUs", default=32,
            stops=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
        ),
        Slider(name="tp", label="Tensor parallel", default=2, stops=DEGREES),
        Slider(name="pp", label="Pipeline stages", default=4, stops=DEGREES),
        Slider(name="vpp", label="Chunks of a stage", default=1, stops=(1, 2, 4, 8)),
        Slider(name="cp", label="Context parallel", default=1, stops=DEGREES),
        Slider(name="ep", label="Expert parallel", default=1, stops=(1, 2, 4, 8, 16, 32, 64)),
        Selection(
            name="zero",
            label="Sharded over replicas",
            options={
                "0": "nothing (DDP)",
                "1": "ZeRO 1: optimizer",
                "2": "ZeRO 2: and gradients",
                "3": "ZeRO 3: and weights",
            },
            default="1",
        ),
        Selection(
            name="recompute",
            label="Recomputed",
            options={"none": "nothing", "selective": "attention", "full": "every layer"},
            default="none",
        ),
        Selection(
            name="precision",
            label="Matmuls in",
            options={"bf16": "bf16", "fp16": "fp16", "fp8": "fp8"},
            default="bf16",
        ),
        Slider(name="micro_batch", label="Micro-batch", default=1, stops=(1, 2, 4, 8, 16)),
        Slider(
            name="global_batch", label="Sequences in a step", default=256,
            stops=(16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
        ),
        Slider(
            name="seq", label="Tokens in a sequence", default=8192,
            stops=(512, 1024, 2048, 4096, 8192, 16384, 32768, 65536),
        ),
    ),
    command=command,
    answer=answer,
    draw=draw,
    why=(
        Formula(
            text="step = micro-batches × slowest stage + bubble + exposed gradient traffic +"
            " optimizer",
            source="Narayanan et al., arXiv 2104.04473, section 2.2; cost/training/step.py",
        ),
        Formula(
            text="tensor parallelism sends 2 all-reduces of tokens × hidden per layer and pass;"
            " ZeRO 3 gathers each layer's weights in both passes",
            source="Shoeybi et al., arXiv 1909.08053, section 3; Rajbhandari et al., arXiv"
            " 1910.02054, section 7.2.2; cost/training/traffic.py",
        ),
        Formula(
            text="efficiencies of kernels and networks are fitted to published runs",
            source="plan/training/calibration.toml; error against rows kept back:"
            " docs/results/accuracy_training.md",
        ),
    ),
)  # fmt: skip
