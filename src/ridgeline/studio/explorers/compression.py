"""Bits, zeros and depth against size, quality and speed: measured schemes, and predicted ones."""

from __future__ import annotations

from typing import cast

from ridgeline import quantity
from ridgeline.plan.compression_front import compression_front
from ridgeline.records.compression_front import CompressionFront, PointKind
from ridgeline.report import document as doc
from ridgeline.report.views.compression_front import (
    FORETOLD_NOTE,
    NOTE,
    foretold_table,
    front_figure,
    front_sentence,
    scheme_table,
    source_lines,
)
from ridgeline.studio.explorer import (
    Explorer,
    Formula,
    OpenFile,
    Picture,
    Selection,
    Several,
    Slider,
    State,
    written,
)


def scheme(state: State) -> str:
    """The scheme that is predicted."""
    return f"w{state.whole('bits')}a16-{state.word('rounding')}"


def command(state: State) -> list[str]:
    """The words that print the same."""
    file = state.file("ledger")
    return [
        "predict",
        "compression",
        *([] if file is None else [str(file)]),
        *("--scheme", scheme(state)),
        *("--kind", ",".join(state.words("kind"))),
        *("--max-rise", written(state.number("rise"))),
    ]


def answer(state: State) -> CompressionFront:
    """Measured schemes, and the one that is predicted."""
    file = state.file("ledger")
    return compression_front(
        [] if file is None else [file],
        schemes=[scheme(state)],
        kinds=cast("tuple[PointKind, ...]", state.words("kind")),
        most_rise=state.number("rise"),
    )


def draw(found: CompressionFront) -> Picture:
    """Size against perplexity, then every figure."""
    predicted = [foretold_table(found)] if found.foretold else [doc.Lines(found.notes, "warning")]
    return Picture(
        sentence=front_sentence(found),
        blocks=[
            doc.Chapter(
                "Size against quality", doc.figure("front", front_figure(found), 440), NOTE
            ),
            doc.Chapter("Measured", [scheme_table(found), doc.Lines(source_lines(found))]),
            doc.Chapter("Predicted", predicted, FORETOLD_NOTE),
        ],
    )


EXPLORER = Explorer(
    place=9,
    title="Compression",
    question="How small may a model become, and what does it cost in quality and gain in speed?",
    inputs=(
        OpenFile(name="ledger", label="Your own ledger", records=("compression",)),
        Slider(
            name="rise", label="The perplexity may rise by", default=0.02, write=quantity.percent,
            stops=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
        ),
        Several(
            name="kind", label="What is done to weights", default=("bits", "zeros", "smaller"),
            options={
                "bits": "fewer bits",
                "zeros": "set to zero",
                "smaller": "layers pruned: a smaller student, not taught",
            },
        ),
        Slider(name="bits", label="Predict so many bits", default=5, stops=(2, 3, 4, 5, 6, 7, 8)),
        Selection(
            name="rounding", label="Predicted rounding", default="channel",
            options={
                "channel": "to nearest, a scale for each row",
                "g32": "to nearest, a scale for 32 weights",
                "gptq-g32": "GPTQ, a scale for 32 weights",
            },
        ),
    ),
    command=command,
    answer=answer,
    draw=draw,
    why=(
        Formula(
            text="loss ∝ step², and a range in b bits has steps of range ÷ (2^b − 1): one bit fewer"
            " costs four to five times the loss",
            source="noise of rounding, step² ÷ 12 (Widrow, Kollár: Quantization Noise, 2008);"
            " cost/rounding_loss.py",
        ),
        Formula(
            text="size = measured size + (bits − measured bits) ÷ 8 × weights of the blocks",
            source="cost/rounding_loss.py",
        ),
        Formula(
            text="a step can be no faster than its bytes are read: reads less is the most to gain",
            source="ledgers of “ridgeline compress”, which count a decode step's bytes",
        ),
    ),
)  # fmt: skip
