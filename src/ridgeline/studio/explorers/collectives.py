"""An all-reduce step by step: ring, tree and hierarchical, and which of them is the fastest."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.cost.all_reduce_steps import AllReduceSteps
from ridgeline.plan.calc import Calculation, calculate
from ridgeline.report import document as doc
from ridgeline.report.views.all_reduce import (
    algorithm_table,
    duration_figure,
    held_figure,
    ring_figure,
    step_words,
)
from ridgeline.studio.explorer import Explorer, Formula, Picture, Selection, Slider, State, written

MOST_STEPS = 62
"""The steps of a ring of 32 ranks."""


def given(state: State) -> list[str]:
    """The arguments of the formula."""
    return [
        f"algorithm={state.word('algorithm')}",
        f"num_ranks={state.whole('ranks')}",
        f"domain_size={state.whole('domain')}",
        f"buffer_bytes={written(state.number('buffer'))}",
        f"domain_bytes_per_second={written(state.number('inside'))}",
        f"network_bytes_per_second={written(state.number('network'))}",
        f"domain_latency_seconds={written(state.number('domain_latency'))}",
        f"network_latency_seconds={written(state.number('network_latency'))}",
        f"at_step={state.whole('step')}",
    ]


def answer(state: State) -> Calculation:
    """The all-reduce, looked at after one step."""
    return calculate("all-reduce-steps", given(state))


def draw(found: Calculation) -> Picture:
    """Arrows, sums and durations."""
    steps: AllReduceSteps = found.result  # type: ignore[assignment]  # what the formula gives
    return Picture(
        sentence=_bound(steps),
        blocks=[
            doc.Chapter(
                "Who sends to whom",
                doc.figure("ring", ring_figure(steps), 400),
                f"{step_words(steps)} A square has the whole sum.",
            ),
            doc.Chapter(
                "What each rank holds",
                doc.figure("held", held_figure(steps), 400),
                "By rank and part of the buffer: how many ranks' contributions are summed there.",
            ),
            doc.Chapter(
                "Which is the fastest",
                [*doc.figure("durations", duration_figure(steps), 220), algorithm_table(steps)],
            ),
        ],
    )


def _bound(steps: AllReduceSteps) -> str:
    fastest = steps.totals[0]
    chosen = next(one for one in steps.totals if one.algorithm == steps.algorithm)
    what = "latency" if chosen.waits_for_latency else "bandwidth"
    compared = (
        "the fastest here"
        if chosen is fastest
        else f"{fastest.algorithm} would take {quantity.seconds(fastest.seconds)}"
    )
    return (
        f"The {chosen.algorithm} all-reduce takes {quantity.seconds(chosen.seconds)} in"
        f" {chosen.num_steps} steps and is bound by {what}:"
        f" {quantity.seconds(chosen.latency_seconds)} are latency, and a rank sends"
        f" {quantity.memory(chosen.sent_bytes)}; {compared}."
    )


EXPLORER = Explorer(
    place=13,
    title="Collectives",
    question="How do many GPUs sum a buffer, step by step, and what does it cost?",
    inputs=(
        Selection(
            name="algorithm",
            label="Algorithm",
            options={"ring": "ring", "tree": "tree", "hierarchical": "hierarchical"},
            default="ring",
        ),
        Slider(
            name="step",
            label="Look after step",
            default=3,
            stops=tuple(range(MOST_STEPS)),
            plays=True,
        ),
        Slider(name="ranks", label="GPUs", default=8, stops=(2, 3, 4, 6, 8, 12, 16, 24, 32)),
        Slider(name="domain", label="GPUs in a fast domain", default=4, stops=(1, 2, 4, 8, 16, 32)),
        Slider(
            name="buffer",
            label="Buffer",
            default=1e9,
            stops=(1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11),
            write=quantity.memory,
        ),
        Slider(
            name="inside",
            label="Fast domain, per GPU",
            default=450e9,
            stops=(16e9, 32e9, 64e9, 150e9, 300e9, 450e9, 900e9),
            write=lambda value: quantity.scaled(value, "B/s"),
        ),
        Slider(
            name="network",
            label="Network, per GPU",
            default=50e9,
            stops=(0.125e9, 1.25e9, 3.125e9, 6.25e9, 12.5e9, 25e9, 50e9, 100e9),
            write=lambda value: quantity.scaled(value, "B/s"),
        ),
        Slider(
            name="domain_latency",
            label="Latency of a step inside",
            default=1e-6,
            stops=(0.0, 5e-7, 1e-6, 2e-6, 5e-6, 1e-5),
            write=quantity.seconds,
        ),
        Slider(
            name="network_latency",
            label="Latency of a step across",
            default=5e-6,
            stops=(0.0, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4),
            write=quantity.seconds,
        ),
    ),
    command=lambda state: ["calc", "all-reduce-steps", *given(state)],
    answer=answer,
    draw=draw,
    why=(
        Formula(
            text="ring: 2 (n − 1) steps of S ÷ n bytes; no algorithm sends less than"
            " 2 (n − 1) ÷ n · S from each rank",
            source="Patarasuk and Yuan, J. Parallel Distrib. Comput. 69(2), 2009, theorem 1;"
            " cost/all_reduce_steps.py",
        ),
        Formula(
            text="tree: 2 ⌈log2 n⌉ steps of S bytes: few steps for small buffers",
            source="Thakur, Rabenseifner, Gropp 2005, section 4",
        ),
        Formula(
            text="hierarchical: inside each fast domain first, so that 1/d of the buffer crosses"
            " the network from each GPU",
            source="Mikami et al., arXiv 1811.05233, section 3.2",
        ),
    ),
)
