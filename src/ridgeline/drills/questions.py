"""The questions of arithmetic are the rows of `questions/*.toml`; here their numbers are drawn.

A row draws one value for each of its names (or several at once, from a table `case`), puts them
into its sentence and into the steps of its solution. A step is a formula of `ridgeline calc`: what
that command prints is what the step is worth, and the last step is the answer.
"""

from __future__ import annotations

import functools
import random
import re
import shlex
from collections.abc import Mapping
from importlib import resources
from typing import Any

import msgspec

from ridgeline import quantity
from ridgeline.drills.solved import CHOICE, RightOption, RightQuantity, SolvedQuestion
from ridgeline.plan.calc import calculate
from ridgeline.records.drill import Ask, DrillQuestion, WorkedStep

Drawn = Mapping[str, float | str]
_SAME_UNIT = re.compile(r"\.0+(?=\D|$)|(\.\d*[1-9])0+(?=\D|$)")
_LARGE = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))
_CALLED = {"usd": "an amount of money", "share": "a share", "ratio": "a factor",
           "count": "a number", "number": "a number", "bytes": "bytes", "seconds": "a time",
           "flops": "FLOPs", "flops_per_second": "a rate in FLOP/s", "joules": "an energy",
           "flops_per_byte": "FLOPs per byte"}  # fmt: skip


class QuestionStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One formula of a solution."""

    says: str
    formula: str
    given: dict[str, str]
    """Argument → text, in which `{name}` stands for a drawn value."""
    take: str = ""
    """The part of a result that has several: `points.0.efficiency`."""


class QuestionRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of question."""

    name: str
    unit: str
    """What is asked for, as `typed.UNITS` has it; `word`: one of `options`."""
    text: str
    draw: dict[str, list[Any]]
    step: list[QuestionStep]
    tolerance: float = 0.05
    """GB and GiB lie 7 % apart, so that taking one for the other is an error."""
    options: list[str] = []


class QuestionTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of questions."""

    topic: str
    question: list[QuestionRow]


@functools.cache
def tables() -> tuple[QuestionTable, ...]:
    """Every file of `questions/`, in the order of their names."""
    folder = resources.files("ridgeline.drills") / "questions"
    files = sorted(
        (one for one in folder.iterdir() if one.name.endswith(".toml")), key=lambda one: one.name
    )
    return tuple(msgspec.toml.decode(one.read_bytes(), type=QuestionTable) for one in files)


def ask_row(topic: str, row: QuestionRow, seed: int) -> SolvedQuestion:
    """A question with numbers drawn by the seed, and its answer."""
    drawn = _draw(row, random.Random(f"{row.name}:{seed}"))
    steps, value = _worked(row, drawn)
    right: RightQuantity | RightOption
    if row.options:
        ask = Ask(prompt="Which one?", unit=CHOICE, options=row.options)
        right = RightOption(number=row.options.index(str(value)))
    else:
        ask = Ask(prompt=f"Answer: {_CALLED[row.unit]}", unit=row.unit)
        right = RightQuantity(value=float(value), tolerance=row.tolerance)  # type: ignore[arg-type]
    return SolvedQuestion(
        question=DrillQuestion(
            id=f"{row.name}:{seed}",
            topic=topic,
            text=row.text.format_map({name: in_words(name, one) for name, one in drawn.items()}),
            asks=[ask],
        ),
        right=(right,),
        solution=steps,
    )


def _draw(row: QuestionRow, draw: random.Random) -> Drawn:
    drawn: dict[str, float | str] = {}
    for name, values in row.draw.items():
        value = draw.choice(values)
        drawn |= value if isinstance(value, dict) else {name: value}
    return drawn


def _worked(row: QuestionRow, drawn: Drawn) -> tuple[tuple[WorkedStep, ...], object]:
    steps: list[WorkedStep] = []
    value: object = None
    texts = {name: one if isinstance(one, str) else f"{one:.10g}" for name, one in drawn.items()}
    for step in row.step:
        pairs = [f"{name}={text.format_map(texts)}" for name, text in step.given.items()]
        value = _taken(calculate(step.formula, pairs).result, step.take)
        unit = row.unit if step is row.step[-1] else _unit_of(step.formula)
        shown = value if isinstance(value, str) else written(unit, float(value))  # type: ignore[arg-type]
        command = shlex.join(["ridgeline", "calc", step.formula, *pairs])
        steps.append(WorkedStep(says=step.says, command=command, result=shown))
    return tuple(steps), value


def _taken(result: object, path: str) -> object:
    for part in filter(None, path.split(".")):
        result = result[int(part)] if part.isdecimal() else getattr(result, part)  # type: ignore[index]
    return result


def _unit_of(formula: str) -> str:
    """The unit of a step before the last, from the name of what computes it."""
    from ridgeline.plan.calc import FORMULAS

    name = FORMULAS[formula].__name__
    known = {"ridge_point": "flops_per_byte", "training_flops": "flops"}
    return known.get(name) or quantity.unit_of(name) or "count"


def written(unit: str, value: float) -> str:
    """An answer as the solution has it.

    >>> written("bytes", 31.4e9), written("share", 0.179), written("joules", 4.6e9)
    ('31.4 GB', '17.9 %', '1.28 MWh')
    """
    if unit == "share":
        return quantity.percent(value, 1)
    if unit == "joules":
        return quantity.scaled(value / 3600.0, "Wh")
    if unit == "seconds" and value >= 2 * 86400.0:
        return f"{quantity.digits(value / 86400.0)} days"
    if unit == "flops" and value >= 1e18:
        return f"{value:.3g} FLOP".replace("e+", "e")
    if unit == "count":
        return quantity.number(value)
    if unit in quantity.UNITS:
        return quantity.UNITS[unit](value)
    return quantity.digits(value)


def in_words(name: str, value: float | str) -> str:
    """A drawn value as a question says it, without digits that say nothing.

    >>> in_words("num_parameters", 7e9), in_words("buffer_bytes", 14e9), in_words("seq", 8192)
    ('7 billion', '14 GB', '8,192')
    >>> in_words("mfu_share", 0.4), in_words("usd_per_device_hour", 2.5), in_words("rate", 0.0003)
    ('40 %', '$2.50', '0.0003')
    """
    if isinstance(value, str):
        return value
    unit = quantity.unit_of(name)
    if unit:
        return _SAME_UNIT.sub(r"\1", quantity.UNITS[unit](value)) if unit != "usd" else _usd(value)
    if name.startswith("usd_"):
        return _usd(value)
    for size, word in _LARGE:
        if value >= size:
            return f"{value / size:g} {word}"
    return f"{value:,g}" if value < 1 or value != int(value) else f"{value:,.0f}"


def _usd(value: float) -> str:
    return quantity.usd(value).removesuffix(".00")
