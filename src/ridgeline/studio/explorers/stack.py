"""A stack of cures as switches: step time, run time and cost of what is on."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.cost.money import CureStack
from ridgeline.plan.calc import Calculation, calculate
from ridgeline.report import document as doc
from ridgeline.report.views.cure_stack import cost_figure, cure_table
from ridgeline.studio.explorer import Explorer, Formula, Picture
from ridgeline.studio.inputs import Input, Slider, State, Switch, written

CURES = (
    ("mixed", "mixed precision", 1.4),
    ("compile", "torch.compile", 1.7),
    ("loading", "data loading", 1.15),
    ("overlap", "communication overlap", 1.12),
)
"""Name of a switch, what it is called, its gain unless a slider says otherwise: the example whose
run falls from $50,000 to $16,300."""
GAINS = (1.0, 1.02, 1.05, 1.08, 1.1, 1.12, 1.15, 1.2, 1.3, 1.4, 1.5, 1.7, 2.0, 2.5, 3.0)


def given(state: State) -> list[str]:
    """The arguments of the formula."""
    names = ",".join(label for _, label, _ in CURES)
    factors = ",".join(written(state.number(f"{name}_gain")) for name, _, _ in CURES)
    switches = ",".join("true" if state.on(name) else "false" for name, _, _ in CURES)
    return [
        f"steps={written(state.number('steps'))}",
        f"step_seconds={written(state.number('step'))}",
        f"usd_per_hour={written(state.number('usd'))}",
        f"names={names}",
        f"factors={factors}",
        f"applied={switches}",
    ]


def answer(state: State) -> Calculation:
    """What each cure leaves."""
    return calculate("stack", given(state))


def draw(found: Calculation) -> Picture:
    """The cost after each cure."""
    stack: CureStack = found.result  # type: ignore[assignment]  # what the formula gives
    return Picture(
        sentence=_sentence(stack),
        blocks=[
            doc.Chapter("Cost of the run", doc.figure("cost", cost_figure(stack), 260)),
            doc.Chapter(
                "Cures",
                [cure_table(stack)],
                "A gain was measured on top of the cures above it. With one of these left out it"
                " is an estimate: only a measurement (`ridgeline tune`) makes it a row.",
            ),
        ],
    )


def _sentence(stack: CureStack) -> str:
    if not stack.largest:
        return (
            f"Nothing is applied: a step takes {quantity.seconds(stack.start.step_seconds)}, the"
            f" run {quantity.hours(stack.start.run_seconds)} and"
            f" {quantity.usd(stack.start.usd or 0)}."
        )
    return (
        f"Together {quantity.ratio(stack.final.cumulative)}: a step falls from"
        f" {quantity.seconds(stack.start.step_seconds)} to"
        f" {quantity.seconds(stack.final.step_seconds)}, the run from"
        f" {quantity.usd(stack.start.usd or 0)} to {quantity.usd(stack.final.usd or 0)}; the"
        f" largest part is {stack.largest}."
    )


def _inputs() -> tuple[Input, ...]:
    moved: list[Input] = []
    for name, label, gain in CURES:
        moved.append(Switch(name=name, label=label, default=True))
        moved.append(
            Slider(
                name=f"{name}_gain", label=f"Gain of {label}", default=gain, stops=GAINS,
                write=quantity.ratio,
            )
        )  # fmt: skip
    return (
        *moved,
        Slider(
            name="steps", label="Steps of the run", default=1e6,
            stops=(1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7),
        ),
        Slider(
            name="step", label="Step as it stood", default=3.6, write=quantity.seconds,
            stops=(0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.6, 5.0, 10.0, 20.0),
        ),
        Slider(
            name="usd", label="Price of the machines, per hour", default=50.0, write=quantity.usd,
            stops=(1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0),
        ),
    )  # fmt: skip


EXPLORER = Explorer(
    place=8,
    title="The stack",
    question="What do cures on top of each other make of a run's time and cost?",
    inputs=_inputs(),
    command=lambda state: ["calc", "stack", *given(state)],
    answer=answer,
    draw=draw,
    why=(
        Formula(
            text="cumulative = product of the gains; step = step as it stood ÷ cumulative",
            source="cost/money.py, cure_stack",
        ),
        Formula(
            text="cost = steps × step ÷ 3600 × price per hour",
            source="cost/money.py, run_cost",
        ),
    ),
)
