"""Static, dynamic and continuous batching side by side: requests as dots on their way."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.models.load import load_model
from ridgeline.plan.simulate.deployment import Deployment
from ridgeline.plan.simulate.playback import play_batching
from ridgeline.records.batching_playback import BatchingPlayback
from ridgeline.records.load import Load
from ridgeline.report import document as doc
from ridgeline.report.views.batching_playback import (
    moment_figure,
    waiting_sentence,
    way_table,
    ways_figure,
)
from ridgeline.studio.explorer import Explorer, Formula, Picture, Selection, Slider, State, written


def command(state: State) -> list[str]:
    """The words that print the same."""
    return [
        "simulate",
        "batching",
        *("--model", state.word("model")),
        *("--gpu", state.word("gpu")),
        *("--rate", written(state.number("rate"))),
        *("--requests", str(state.whole("requests"))),
        *("--input-tokens", str(state.whole("prompt"))),
        *("--output-tokens", str(state.whole("answer"))),
        *("--max-sequences", str(state.whole("seats"))),
        *("--dynamic-delay", written(state.number("delay"))),
        *("--at", written(state.number("at"))),
    ]


def answer(state: State) -> BatchingPlayback:
    """The same requests under each way of batching."""
    return play_batching(
        load_model(state.word("model")),
        Load(
            arrivals="poisson",
            rate=state.number("rate"),
            requests=state.whole("requests"),
            input_tokens=state.whole("prompt"),
            output_tokens=state.whole("answer"),
            seed=0,
        ),
        Deployment(
            gpu=state.word("gpu"),
            max_sequences=state.whole("seats"),
            dynamic_delay_seconds=state.number("delay"),
        ),
        moment_share=state.number("at"),
    )


def draw(found: BatchingPlayback) -> Picture:
    """The moment, the ways, the percentiles."""
    return Picture(
        sentence=waiting_sentence(found),
        blocks=[
            doc.Chapter(
                "Where everyone is at this moment",
                doc.figure("moment", moment_figure(found), 420),
                "One dot is one request. Move the moment, or play the run.",
            ),
            doc.Chapter("Waiting", [way_table(found)]),
            doc.Chapter(
                "The whole run",
                doc.figure("ways", ways_figure(found), 560),
                "A line is one request: it waits, its prompt is computed, its tokens come.",
            ),
        ],
    )


EXPLORER = Explorer(
    place=11,
    title="Serving",
    question="What does continuous batching spare those who wait?",
    inputs=(
        Slider(
            name="at", label="Moment", default=0.5, write=quantity.percent, plays=True,
            stops=(0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6,
                   0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0),
        ),
        Selection(
            name="model", label="Model", default="Llama-3-8B",
            options={"Llama-3-8B": "Llama-3-8B", "Mistral-7B": "Mistral-7B"},
        ),
        Selection(
            name="gpu", label="Device", default="H100-SXM-80GB",
            options={"H100-SXM-80GB": "H100-SXM-80GB", "A100-SXM-80GB": "A100-SXM-80GB"},
        ),
        Slider(
            name="rate", label="Requests per second", default=4.0,
            stops=(0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0),
        ),
        Slider(name="requests", label="Requests", default=60, stops=(20, 40, 60, 80, 120)),
        Slider(
            name="prompt", label="Tokens of a prompt", default=512,
            stops=(64, 128, 256, 512, 1024, 2048),
        ),
        Slider(
            name="answer", label="Tokens of an answer", default=128, stops=(16, 32, 64, 128, 256)
        ),
        Slider(name="seats", label="Seats of a batch", default=8, stops=(1, 2, 4, 8, 16, 32, 64)),
        Slider(
            name="delay", label="A dynamic batch waits", default=0.5, write=quantity.seconds,
            stops=(0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0),
        ),
    ),
    command=command,
    answer=answer,
    draw=draw,
    why=(
        Formula(
            text="continuous: a seat is free as soon as its sequence ends",
            source="Yu et al., Orca, OSDI 2022, section 3.1; batching/policies.py",
        ),
        Formula(
            text="static: the next batch starts when all of the last one has ended; dynamic: and"
            " when it is full or its oldest request has waited long enough",
            source="batching/policies.py; the scheduler is the one that `ridgeline serve` runs",
        ),
        Formula(
            text="the time of a step by the calibrated model of published engines",
            source="cost/serving/clock.py",
        ),
    ),
    simulates=True,
)  # fmt: skip
