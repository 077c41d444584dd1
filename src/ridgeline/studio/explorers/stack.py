"""A stack of cures as switches: step time, run time and cost of what is on.

Without a file it is an example, its gains on sliders; with the ledger of a script that was tuned it
is that script's own stack, with intervals and memory.
"""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.cost.money import CureStack
from ridgeline.plan.calc import Calculation, calculate
from ridgeline.plan.stack_forecast import forecast_stack, stack_rows
from ridgeline.records.stack_forecast import StackForecast
from ridgeline.report import document as doc
from ridgeline.report.views.cure_stack import cost_figure, cure_table
from ridgeline.report.views.stack_forecast import (
    NOTE,
    row_table,
    stack_sentence,
    step_figure,
    step_height,
)
from ridgeline.studio.explorer import (
    Explorer,
    Formula,
    Input,
    OpenFile,
    Picture,
    RowSwitches,
    Slider,
    State,
    Switch,
    written,
)

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


def command(state: State) -> list[str]:
    """The words that print the same."""
    file = state.file("ledger")
    if file is None:
        return ["calc", "stack", *given(state)]
    left_out = [word for name in state.words("without") for word in ("--without", name)]
    return [
        *("predict", "stack", str(file), *left_out),
        *("--steps-to-train", written(state.number("steps"))),
        *("--usd-per-hour", written(state.number("usd"))),
    ]


def answer(state: State) -> Calculation | StackForecast:
    """What each cure leaves."""
    file = state.file("ledger")
    if file is None:
        return calculate("stack", given(state))
    return forecast_stack(
        file,
        without=state.words("without"),
        steps_to_train=state.number("steps"),
        usd_per_hour=state.number("usd"),
    )


def draw(found: Calculation | StackForecast) -> Picture:
    """The cost after each cure of the example, or the step after each row of a ledger."""
    if isinstance(found, StackForecast):
        return _own(found)
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


def _own(found: StackForecast) -> Picture:
    tried = [doc.Paragraph(f"Tried, and not kept: {', '.join(found.not_kept)}.", "dim")]
    return Picture(
        sentence=stack_sentence(found),
        blocks=[
            doc.Chapter(
                "Step time", doc.figure("steps", step_figure(found), step_height(found)), NOTE
            ),
            doc.Chapter("Rows", [row_table(found), *(tried if found.not_kept else [])]),
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
        moved.append(Switch(name=name, label=label, default=True, unless="ledger"))
        moved.append(
            Slider(
                name=f"{name}_gain", label=f"Gain of {label}", default=gain, stops=GAINS,
                write=quantity.ratio, unless="ledger",
            )
        )  # fmt: skip
    return (
        OpenFile(name="ledger", label="Your own ledger", records=("tuning",)),
        RowSwitches(name="without", label="Rows of its stack", file="ledger", rows=stack_rows),
        *moved,
        Slider(
            name="steps", label="Steps of the run", default=1e6,
            stops=(1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7),
        ),
        Slider(
            name="step", label="Step as it stood", default=3.6, write=quantity.seconds,
            unless="ledger",
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
    command=command,
    answer=answer,
    draw=draw,
    why=(
        Formula(
            text="of a ledger with rows left out: the product of the other multipliers, its"
            " interval from theirs in quadrature; with all rows in, what was measured side by side",
            source="plan/stack_forecast.py; Taylor, An introduction to error analysis, 1997,"
            " section 3.6",
        ),
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
