"""How long a whole training run takes on more and more GPUs, real against ideal."""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline import quantity
from ridgeline.hardware.cluster import gigabits, parse_cluster
from ridgeline.plan.explain import TERMS
from ridgeline.plan.scaling_forecast import ImageRun, TokenRun, predict_scaling
from ridgeline.plan.vision.question import vision_name
from ridgeline.records.scaling_forecast import ScalingForecast
from ridgeline.report import document as doc
from ridgeline.report.views.scaling_forecast import (
    NOTE,
    efficiency_figure,
    point_table,
    published_table,
    time_figure,
)
from ridgeline.studio.explorer import Explorer, Formula, Picture, Selection, Slider, State, written
from ridgeline.studio.listed import language_models, training_devices

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
NETWORKS = ("resnet50", "resnet101", "vit_base_patch16_224", "convnext_base")


def models() -> Mapping[str, str]:
    """Language models, and the best-known networks for images."""
    return {**{name: name for name in NETWORKS}, **language_models()}


def counts(state: State) -> list[int]:
    """The numbers of devices from the least to the most."""
    first, last = state.whole("first"), state.whole("most")
    return [count for count in COUNTS if first <= count <= last] or [first]


def of_images(state: State) -> bool:
    """Whether the model looks at images."""
    return vision_name(state.word("model")) is not None


def command(state: State) -> list[str]:
    """The words that print the same."""
    shared = [
        *("predict", "scaling", "--model", state.word("model"), "--device", state.word("device")),
        *("--devices", ",".join(str(count) for count in counts(state))),
        *("--overlap", written(state.number("overlap"))),
        *("--network", written(state.number("network"))),
    ]
    if of_images(state):
        return [*shared, "--batch", str(state.whole("images"))]
    return [
        *shared,
        *("--tokens", written(state.number("tokens"))),
        *("--global-batch", str(state.whole("global_batch"))),
        *("--micro-batch", str(state.whole("micro_batch")), "--seq", str(state.whole("seq"))),
        *("--tp", str(state.whole("tp")), "--pp", str(state.whole("pp"))),
        *("--recompute", state.word("recompute")),
    ]


def answer(state: State) -> ScalingForecast:
    """The run on every number of devices."""
    cluster = parse_cluster(
        f"1x{state.word('device')}",
        network_bytes_per_second=gigabits(state.number("network")),
    )
    run: ImageRun | TokenRun
    if of_images(state):
        run = ImageRun(batch=state.whole("images"))
    else:
        run = TokenRun(
            tokens=state.number("tokens"),
            global_batch=state.whole("global_batch"),
            micro_batch=state.whole("micro_batch"),
            seq=state.whole("seq"),
            tp=state.whole("tp"),
            pp=state.whole("pp"),
            recompute=state.word("recompute"),  # type: ignore[arg-type]  # one of its choices
        )
    return predict_scaling(
        state.word("model"), cluster, counts(state), run, overlap=state.number("overlap")
    )


def draw(found: ScalingForecast) -> Picture:
    """Time, efficiency and the runs of others."""
    published: list[doc.Block] = []
    if found.published:
        published = [doc.Chapter("Runs that others published", [published_table(found)])]
    return Picture(
        sentence=_bound(found),
        blocks=[
            doc.Chapter("Training time", doc.figure("time", time_figure(found), 420), NOTE),
            doc.Chapter("Efficiency", doc.figure("efficiency", efficiency_figure(found), 260)),
            doc.Chapter("In figures", [point_table(found)]),
            *published,
        ],
    )


def _bound(found: ScalingForecast) -> str:
    last = found.points[-1]
    lost = ""
    if last.bottleneck != "none":
        word = TERMS.get(last.bottleneck, ("communication", ()))[0]
        lost = f"; most of what is lost goes to {word}"
    fits = "" if last.verdict == "fits" else " It does not fit in memory there with room to spare."
    cost = "" if last.usd is None else f", for {quantity.usd(last.usd)}"
    return (
        f"{found.model} takes {quantity.hours(last.run_seconds)} on"
        f" {quantity.count(last.num_devices)} devices{cost}. The ideal is"
        f" {quantity.hours(last.ideal_seconds)}: they are {quantity.percent(last.efficiency)}"
        f" efficient{lost}.{fits}"
    )


EXPLORER = Explorer(
    place=1,
    title="Scaling",
    question="How much shorter does training get with more GPUs, and when does it stop?",
    inputs=(
        Selection(name="model", label="Model", options=models, default="Llama-3-8B"),
        Selection(name="device", label="Device", options=training_devices, default="H100-SXM-80GB"),
        Slider(name="first", label="From so many GPUs", default=8, stops=COUNTS[:8]),
        Slider(name="most", label="Up to", default=1024, stops=COUNTS[3:]),
        Slider(
            name="network", label="Network of a GPU", default=400.0,
            stops=(1.0, 10.0, 25.0, 50.0, 100.0, 200.0, 400.0, 800.0),
            write=lambda value: f"{quantity.number(value)} Gbit/s",
        ),
        Slider(
            name="overlap", label="Backward that hides gradients", default=0.8,
            stops=(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0), write=quantity.percent,
        ),
        Slider(
            name="tokens", label="Tokens of the run", default=3e11,
            stops=(1e9, 1e10, 1e11, 3e11, 1e12, 2e12, 5e12, 1.5e13),
            write=lambda value: quantity.scaled(value, "").strip(),
        ),
        Slider(
            name="global_batch", label="Sequences in a step", default=1024,
            stops=(256, 512, 1024, 2048, 4096, 8192, 16384),
        ),
        Slider(name="micro_batch", label="Micro-batch", default=1, stops=(1, 2, 4, 8)),
        Slider(
            name="seq", label="Tokens in a sequence", default=4096,
            stops=(512, 1024, 2048, 4096, 8192, 16384, 32768),
        ),
        Slider(name="tp", label="Tensor parallel", default=1, stops=(1, 2, 4, 8)),
        Slider(name="pp", label="Pipeline stages", default=1, stops=(1, 2, 4, 8, 16)),
        Selection(
            name="recompute", label="Recomputed",
            options={"none": "nothing", "selective": "attention", "full": "every layer"},
            default="none",
        ),
        Slider(
            name="images", label="Images of a GPU (of networks)", default=256,
            stops=(16, 32, 64, 128, 256, 512),
        ),
    ),
    command=command,
    answer=answer,
    draw=draw,
    why=(
        Formula(
            text="run = steps × step; step = compute + what of the communication nothing hides",
            source="cost/training/step.py and communication.py; plan/scaling_forecast.py",
        ),
        Formula(
            text="exposed = max(reduce − overlap × backward, last bucket)",
            source="Li et al., PyTorch Distributed, arXiv 2006.15704, section 3.2.3",
        ),
        Formula(
            text="efficiency = device-hours of the first point ÷ device-hours here",
            source="plan/scaling_forecast.py; runs of others: plan/published_whole_runs.toml",
        ),
    ),
)  # fmt: skip
