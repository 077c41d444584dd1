"""A pipeline step under each schedule, block by block, with its bubbles counted."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.cost.schedule_comparison import ScheduleComparison
from ridgeline.plan.calc import Calculation, calculate
from ridgeline.report import document as doc
from ridgeline.report.views.planning_figures import pipeline_timeline
from ridgeline.report.views.schedule_comparison import bubble_figure, schedule_table
from ridgeline.studio.explorer import Explorer, Formula, Picture, Selection, Slider, State, written

MILLISECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1)


def given(state: State) -> list[str]:
    """The arguments of the formula."""
    return [
        f"schedule={state.word('schedule')}",
        f"num_stages={state.whole('stages')}",
        f"num_microbatches={state.whole('microbatches')}",
        f"num_chunks={state.whole('chunks')}",
        f"forward_seconds={written(state.number('forward'))}",
        f"backward_input_seconds={written(state.number('backward_input'))}",
        f"backward_weight_seconds={written(state.number('backward_weight'))}",
        f"p2p_seconds={written(state.number('send'))}",
    ]


def answer(state: State) -> Calculation:
    """The step, and the schedules beside it."""
    return calculate("pipeline", given(state))


def draw(found: Calculation) -> Picture:
    """Blocks, bubbles, and what the fullest stage holds."""
    step: ScheduleComparison = found.result  # type: ignore[assignment]  # what the formula gives
    stages = doc.figure("blocks", pipeline_timeline(step.timeline), _height(step.num_stages))
    return Picture(
        sentence=_bound(step),
        blocks=[
            doc.Chapter(
                "One step, block by block",
                stages,
                "A block is one micro-batch in one stage; the number is the micro-batch, and what"
                " is empty is the bubble.",
            ),
            doc.Chapter(
                "The other schedules",
                [*doc.figure("bubbles", bubble_figure(step), 240), schedule_table(step)],
            ),
        ],
    )


def _height(num_stages: int) -> int:
    return next(height for most, height in ((4, 260), (8, 380), (99, 620)) if num_stages <= most)


def _bound(step: ScheduleComparison) -> str:
    best = step.schedules[0]
    timeline = step.timeline
    better = (
        "no other schedule is shorter"
        if best.schedule == timeline.schedule
        else f"{best.schedule} would idle {quantity.percent(best.bubble_fraction)}"
    )
    whole = quantity.seconds(timeline.makespan_seconds)
    return (
        f"{quantity.percent(step.bubble_fraction)} of the {whole} that {timeline.schedule} takes is"
        f" bubble; without any it would be {quantity.seconds(step.ideal_seconds)}. The first"
        f" stage holds {quantity.number(step.peak_live_microbatches[0])} micro-batches at once;"
        f" {better}."
    )


def _time(name: str, label: str, default: float, *, zero: bool = False) -> Slider:
    stops = (0.0, *MILLISECONDS) if zero else MILLISECONDS
    return Slider(name=name, label=label, default=default, stops=stops, write=quantity.seconds)


EXPLORER = Explorer(
    place=15,
    title="Pipelines",
    question="Where do pipeline stages wait, and which schedule waits least?",
    inputs=(
        Selection(
            name="schedule",
            label="Schedule",
            options={
                "gpipe": "GPipe: all forwards first",
                "1f1b": "1F1B: one forward, one backward",
                "interleaved": "interleaved 1F1B",
                "zero-bubble": "zero-bubble (ZB-H1)",
            },
            default="1f1b",
        ),
        Slider(name="stages", label="Stages", default=4, stops=(1, 2, 3, 4, 6, 8, 12, 16)),
        Slider(
            name="microbatches", label="Micro-batches", default=8,
            stops=(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64),
        ),
        Slider(name="chunks", label="Model chunks of a stage", default=1, stops=(1, 2, 3, 4, 8)),
        _time("forward", "Forward of a micro-batch", 0.01),
        _time("backward_input", "Backward, for the input", 0.01),
        _time("backward_weight", "Backward, for the weights", 0.01),
        _time("send", "Sending to the next stage", 0.0, zero=True),
    ),
    command=lambda state: ["calc", "pipeline", *given(state)],
    answer=answer,
    draw=draw,
    why=(
        Formula(
            text="bubble of GPipe and 1F1B = (p − 1) ÷ (m + p − 1); with v chunks per stage"
            " (p − 1) ÷ (v m + p − 1)",
            source="Narayanan et al., arXiv 2104.04473, section 2.2; cost/pipeline_schedule.py",
        ),
        Formula(
            text="ZB-H1 cuts the backward in two and lets weight gradients fill the bubble:"
            " (p − 1)(F + B − W) remain",
            source="Qi et al., arXiv 2401.10241, table 2",
        ),
    ),
)  # fmt: skip
