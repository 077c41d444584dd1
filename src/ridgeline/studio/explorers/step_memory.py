"""What is alive on a device at each moment of a training step, and whether it fits."""

from __future__ import annotations

from typing import cast

from ridgeline import quantity
from ridgeline.cost.training.memory_curve import Checkpoint
from ridgeline.hardware.cluster import parse_cluster
from ridgeline.plan.training.filled_layout import filled_layout
from ridgeline.plan.training.memory_curve import predict_memory
from ridgeline.plan.training.trained import WHOLE, Trained
from ridgeline.records.memory_curve import MemoryCurve
from ridgeline.records.recipe_compression import RecipeAdapter
from ridgeline.report import document as doc
from ridgeline.report.views.layout_names import plain_term
from ridgeline.report.views.memory_curve import NOTE, checkpoint_table, curve_figure, peak_table
from ridgeline.studio.explorer import Explorer, Formula, Picture, Selection, Slider, State
from ridgeline.studio.listed import language_models, training_devices

TRAINED = {
    "weights": WHOLE,
    "lora": Trained(adapter=RecipeAdapter(kind="lora")),
    "qlora": Trained(adapter=RecipeAdapter(kind="qlora")),
}


def cluster(state: State) -> str:
    """The cluster as one types it."""
    return f"{state.whole('gpus')}x{state.word('device')}"


def command(state: State) -> list[str]:
    """The words that print the same."""
    adapter = state.word("trained")
    return [
        *("predict", "memory", "--model", state.word("model"), "--cluster", cluster(state)),
        *("--checkpoint", state.word("checkpoint"), "--zero", state.word("zero")),
        *("--micro-batch", str(state.whole("micro_batch")), "--seq", str(state.whole("seq"))),
        *("--global-batch", str(state.whole("global_batch"))),
        *(() if adapter == "weights" else ("--adapter", adapter)),
    ]


def answer(state: State) -> MemoryCurve:
    """Memory over the step."""
    place = parse_cluster(cluster(state))
    layout = filled_layout(
        place,
        zero=int(state.word("zero")),
        micro_batch=state.whole("micro_batch"),
        global_batch=state.whole("global_batch"),
    )
    return predict_memory(
        state.word("model"),
        place,
        layout=layout,
        checkpoint=cast("Checkpoint", state.word("checkpoint")),
        seq=state.whole("seq"),
        trained=TRAINED[state.word("trained")],
    )


def draw(found: MemoryCurve) -> Picture:
    """The curve, its peak, and other ways to keep activations."""
    return Picture(
        sentence=_bound(found),
        blocks=[
            doc.Chapter("Over the step", doc.figure("curve", curve_figure(found), 440), NOTE),
            doc.Chapter("At the peak", [peak_table(found)]),
            doc.Chapter("What is kept and what is redone", [checkpoint_table(found)]),
        ],
    )


def _bound(found: MemoryCurve) -> str:
    verdict = {
        "fits": "It fits",
        "tight": "It fits so tightly that fragmentation decides",
        "oom": "It does not fit",
    }[found.verdict]
    fitting = [one for one in found.others if one.verdict == "fits"]
    cure = ""
    if found.verdict != "fits":
        fastest = min(fitting, key=lambda one: one.seconds, default=None)
        cure = (
            " No checkpoints would make it fit: shard more, or take a smaller micro-batch."
            if fastest is None
            else f" With “{fastest.checkpoint}” checkpoints it would fit, at"
            f" {quantity.memory(fastest.peak_bytes)}."
        )
    return (
        f"{verdict}: {quantity.memory(found.peak.total_bytes)} of"
        f" {quantity.memory(found.capacity_bytes)} at the peak, in the {found.peak.phase} pass;"
        f" most of it is {plain_term(found.largest_term)}"
        f" ({quantity.memory(found.peak.terms[found.largest_term])}).{cure}"
    )


EXPLORER = Explorer(
    place=4,
    title="Memory during a step",
    question="What fills a GPU while it trains, and what makes it fit?",
    inputs=(
        Selection(name="model", label="Model", options=language_models, default="Llama-3-8B"),
        Selection(name="device", label="Device", options=training_devices, default="H100-SXM-80GB"),
        Slider(name="gpus", label="GPUs", default=8, stops=(1, 2, 4, 8, 16, 32, 64, 128, 256)),
        Selection(
            name="trained",
            label="Trained",
            options={
                "weights": "all weights",
                "lora": "LoRA: adapters of rank 16",
                "qlora": "QLoRA: the same, weights in 4 bits",
            },
            default="weights",
        ),
        Selection(
            name="checkpoint",
            label="Activations",
            options={
                "none": "keep all",
                "selective": "selective: redo attention",
                "full": "full: keep a layer's input",
                "sqrt": "√L: keep one input per segment",
            },
            default="none",
        ),
        Selection(
            name="zero",
            label="Sharded over the GPUs",
            options={
                "0": "nothing (DDP)",
                "1": "ZeRO 1: optimizer",
                "2": "ZeRO 2: and gradients",
                "3": "ZeRO 3: and weights",
            },
            default="3",
        ),
        Slider(
            name="micro_batch", label="Micro-batch", default=1, stops=(1, 2, 4, 8, 16, 32, 64)
        ),
        Slider(
            name="seq", label="Tokens in a sequence", default=8192,
            stops=(512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072),
        ),
        Slider(
            name="global_batch", label="Sequences in a step", default=512,
            stops=(64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
        ),
    ),
    command=command,
    answer=answer,
    draw=draw,
    why=(
        Formula(
            text="mixed precision with Adam holds 16 or more bytes per parameter; ZeRO over N GPUs"
            " divides the optimizer (1), gradients (2) and weights (3) by N",
            source="Rajbhandari et al., arXiv 1910.02054, sections 3.1 and 5;"
            " cost/static_memory.py",
        ),
        Formula(
            text="activations per layer ≈ s·b·h·34 + 5·a·s²·b bytes, the last term only where"
            " attention is not fused",
            source="Korthikanti et al., arXiv 2205.05198, section 4; cost/training/memory.py",
        ),
        Formula(
            text="adapters of rank r add r·(inputs + outputs) parameters to a layer; the frozen"
            " weights have no gradients and no state",
            source="Hu et al., arXiv 2106.09685, section 4.1; cost/training/adapters.py",
        ),
        Formula(
            text="√L checkpoints: ⌈√L⌉ inputs stay, and one segment is redone at a time",
            source="Chen et al., arXiv 1604.06174, section 4.1; cost/training/memory_curve.py",
        ),
    ),
)  # fmt: skip
