"""Which numbers a format can hold, and what becomes of a value that is typed."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.cost.number_line import FORMATS, NumberLine
from ridgeline.plan.calc import Calculation, calculate
from ridgeline.report import document as doc
from ridgeline.report.views.number_line import format_table, neighbour_figure, range_figure
from ridgeline.studio.explorer import (
    Explorer,
    Formula,
    Number,
    Picture,
    Several,
    Slider,
    State,
    written,
)


def given(state: State) -> list[str]:
    """The arguments of the formula."""
    return [
        f"value={written(state.number('value'))}",
        f"block_largest={written(state.number('largest'))}",
        f"window={written(state.number('window'))}",
        f"formats={','.join(state.words('formats'))}",
    ]


def answer(state: State) -> Calculation:
    """The value in every format."""
    return calculate("number-line", given(state))


def draw(found: Calculation) -> Picture:
    """Neighbours, ranges and figures."""
    line: NumberLine = found.result  # type: ignore[assignment]  # what the formula gives
    return Picture(
        sentence=_bound(line),
        blocks=[
            doc.Chapter(
                "The numbers near it",
                doc.figure("neighbours", neighbour_figure(line), 430),
                "Each stroke is a number that the format has; a band has too many to be told"
                " apart. The dashed line is the value, a diamond what it becomes.",
            ),
            doc.Chapter(
                "How far each format reaches",
                doc.figure("reach", range_figure(line), 400),
                "From the smallest number above 0 to the largest, in powers of ten.",
            ),
            doc.Chapter("In figures", [format_table(line)]),
        ],
    )


def _bound(line: NumberLine) -> str:
    lost = [one.format for one in line.formats if one.overflows]
    kept = [one for one in line.formats if one.relative_error is not None]
    words = []
    if lost:
        words.append(f"{line.value:.7g} is beyond the range of {', '.join(lost)}.")
    if kept:
        worst = max(kept, key=lambda one: one.relative_error or 0.0)
        best = min(kept, key=lambda one: one.relative_error or 0.0)
        words.append(
            f"{worst.format} holds {line.value:.7g} worst, as {worst.rounded:.7g}"
            f" ({quantity.percent(worst.relative_error or 0.0)} off);"
            f" {best.format} best, as {best.rounded:.7g}."
        )
        words.append(
            f"Stochastic rounding takes {worst.format} up in"
            f" {quantity.percent(worst.share_up)} of the cases, so that the mean is kept."
        )
    return " ".join(words) or "0 is a number of every format."


EXPLORER = Explorer(
    place=6,
    title="Number formats",
    question="What does a number become in fewer bits, and which numbers are left?",
    inputs=(
        Number(name="value", label="Value", low=-1e38, high=1e38, default=0.3),
        Slider(
            name="window",
            label="Window on either side",
            default=1.0,
            stops=(0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 32.0, 128.0, 512.0),
        ),
        Slider(
            name="largest",
            label="Largest number of its block",
            default=6.0,
            stops=(0.01, 0.1, 0.5, 1.0, 2.0, 3.0, 6.0, 10.0, 30.0, 100.0, 448.0),
        ),
        Several(
            name="formats",
            label="Formats",
            options={name: name for name in FORMATS},
            default=tuple(FORMATS),
            most=len(FORMATS),
        ),
    ),
    command=lambda state: ["calc", "number-line", *given(state)],
    answer=answer,
    draw=draw,
    why=(
        Formula(
            text="step at x = 2^(⌊log2 |x|⌋ − mantissa bits): relative spacing is the same at every"
            " size, and below the smallest normal number the step stays",
            source="IEEE 754-2019, section 3.3; cost/number_line.py",
        ),
        Formula(
            text="MX: 32 numbers share a power of two; NVFP4: 16 share an E4M3 scale; integers: a"
            " row shares one step",
            source="OCP Microscaling Formats 1.0, section 6.3; kernels/number_formats/",
        ),
        Formula(
            text="stochastic rounding goes up with probability (x − below) ÷ step: its mean is x",
            source="Gupta et al., arXiv 1502.02551, section 3",
        ),
    ),
)
