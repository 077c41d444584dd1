"""A training loop as a timeline: loader workers, copies, computation and gradients."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.cost.step_timeline import StepTimeline
from ridgeline.plan.calc import Calculation, calculate
from ridgeline.report import document as doc
from ridgeline.report.views.step_timeline import cure_words, gap_table, lane_figure, lane_height
from ridgeline.studio.explorer import Explorer, Formula, Picture, Slider, State, Switch, written

SHORT = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
WORK = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.06, 0.1, 0.2, 0.5, 1.0)


def given(state: State) -> list[str]:
    """The arguments of the formula."""
    times = ("load", "copy", "forward", "backward", "optimizer", "reduce")
    return [
        *(f"{name}_seconds={written(state.number(name))}" for name in times),
        f"num_workers={state.whole('workers')}",
        f"prefetch={state.whole('prefetch')}",
        f"accumulate={state.whole('accumulate')}",
        f"num_steps={state.whole('steps')}",
        f"pinned={written(state.on('pinned'))}",
        f"overlap={written(state.on('overlap'))}",
    ]


def answer(state: State) -> Calculation:
    """The loop with its gaps."""
    return calculate("step-timeline", given(state))


def draw(found: Calculation) -> Picture:
    """Draw the lanes and the gaps."""
    loop: StepTimeline = found.result  # type: ignore[assignment]  # what the formula gives
    return Picture(
        sentence=cure_words(loop),
        blocks=[
            doc.Chapter(
                "The loop",
                doc.figure("lanes", lane_figure(loop), lane_height(loop)),
                "Every lane does one thing at a time. A red frame is a gap in which the device"
                " waits; point at it for its name.",
            ),
            doc.Chapter("Where a step goes", [gap_table(loop)]),
            doc.Chapter(
                "Your own run",
                [
                    doc.Paragraph(
                        "“ridgeline doctor -- train.py” measures these times. A profiler's trace"
                        " that is named when the studio starts is drawn under Files."
                    )
                ],
            ),
        ],
    )


def _time(name: str, label: str, default: float, stops: tuple[float, ...] = SHORT) -> Slider:
    return Slider(name=name, label=label, default=default, stops=stops, write=quantity.seconds)


EXPLORER = Explorer(
    place=5,
    title="GPU timeline",
    question="Why does a GPU wait during training, and for what?",
    inputs=(
        Slider(name="workers", label="Loader workers", default=2, stops=(0, 1, 2, 3, 4, 6, 8, 12)),
        Slider(name="prefetch", label="Batches ahead of each", default=2, stops=(1, 2, 4, 8)),
        Switch(name="pinned", label="Pinned memory, asynchronous copies", default=True),
        Switch(name="overlap", label="Gradients travel under the backward", default=True),
        Slider(name="accumulate", label="Micro-batches in a step", default=1, stops=(1, 2, 4, 8)),
        _time("load", "Making a batch, one worker", 0.3),
        _time("copy", "Copy to the GPU", 0.01),
        _time("forward", "Forward", 0.03, WORK),
        _time("backward", "Backward", 0.06, WORK),
        _time("optimizer", "Optimizer", 0.01),
        _time("reduce", "Gradients over the network", 0.03),
        Slider(name="steps", label="Steps to draw", default=6, stops=(2, 4, 6, 8, 12)),
    ),
    command=lambda state: ["calc", "step-timeline", *given(state)],
    answer=answer,
    draw=draw,
    why=(
        Formula(
            text="loading keeps up when workers ≥ time to make a batch ÷ time of a step",
            source="torch.utils.data, num_workers and prefetch_factor; cost/step_timeline.py",
        ),
        Formula(
            text="a copy from pinned memory runs beside kernels; from pageable memory it does not",
            source="CUDA C++ Programming Guide, asynchronous concurrent execution",
        ),
        Formula(
            text="gradients are reduced in buckets while the backward still runs, all but the last",
            source="Li et al., PyTorch Distributed, arXiv 2006.15704, section 3.2.3",
        ),
    ),
)
