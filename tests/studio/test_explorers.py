"""Every explorer: it shows what its command prints, and computes nothing itself."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.plan.stack_forecast import stack_rows
from ridgeline.report import document as doc
from ridgeline.studio.app import answer_document, shown_answer
from ridgeline.studio.controls import draw_controls
from ridgeline.studio.explorer import (
    Explorer,
    Input,
    Number,
    OpenFile,
    RowSwitches,
    Selection,
    Several,
    Slider,
    State,
    Switch,
    Value,
    address_of,
    explorers,
    read_state,
)
from ridgeline.studio.files import Files, name_files

DEAR = {"deadline", "serving"}
"""They simulate for a second at each look."""
EVERY = pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=pytest.mark.slow if one in DEAR else ()) for one in explorers()],
)
ARITHMETIC = (
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.MatMult,
    ast.LShift, ast.RShift,
)  # fmt: skip
MOST_WORDS = 60
"""Words of one choice that are tried: of a catalogue of 1,500 networks one in so many."""
COUNTING = ("sum", "pow", "divmod", "abs", "round", "math", "numpy", "statistics", "operator")
"""Names of builtins and modules that compute."""


def starting_state(explorer: Explorer) -> State:
    return State({one.name: one.default for one in explorer.inputs})


def other_values(one: Input) -> Iterator[Value]:
    """Values that an input may have beside its default, the ends among them."""
    if isinstance(one, Slider):
        yield from dict.fromkeys((one.stops[0], one.stops[-1], *one.stops))
    elif isinstance(one, Number):
        yield from (one.low, one.high, 1.0)
    elif isinstance(one, Switch):
        yield not one.default
    elif isinstance(one, Selection):
        words = [word for word in one.listed() if word != one.default]
        yield from words[:: -(-len(words) // MOST_WORDS) or 1]
    elif isinstance(one, Several):
        yield from ((word,) for word in one.listed())


def moved(explorer: Explorer, one: Input, value: Value) -> State:
    return State({**starting_state(explorer).values, one.name: value})


def printed(explorer: Explorer, state: State, capsys: pytest.CaptureFixture[str]) -> str:
    """What the copied command prints with --json."""
    capsys.readouterr()
    assert run([*explorer.command(state), "--json"]) == 0
    return capsys.readouterr().out


def timeless(document: Any) -> Any:
    """A document without how long its own computing took."""
    if isinstance(document, dict):
        return {
            key: timeless(value) for key, value in document.items() if key != "answered_in_seconds"
        }
    return [timeless(one) for one in document] if isinstance(document, list) else document


def holds_to_its_command(
    explorer: Explorer, state: State, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answer is the command's; a state that cannot be is refused by both in one sentence."""
    try:
        answer = answer_document(explorer, state)
    except InputError:
        assert run(explorer.command(state)) == 2
        return
    assert timeless(json.loads(answer)) == timeless(json.loads(printed(explorer, state, capsys)))
    shown = shown_answer(explorer, state)
    assert shown["sentence"].strip()
    json.dumps(shown, allow_nan=False)


@pytest.mark.sweep(every=4)
@EVERY
def test_it_shows_what_its_command_prints(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    explorer = explorers()[name]
    holds_to_its_command(explorer, starting_state(explorer), capsys)
    moves = random.Random(name)
    for one in explorer.inputs:
        values = list(other_values(one))
        if values:
            holds_to_its_command(explorer, moved(explorer, one, moves.choice(values)), capsys)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "place"),
    [
        pytest.param(name, place, id=f"{name}-{one.name}")
        for name, explorer in explorers().items()
        for place, one in enumerate(explorer.inputs)
    ],
)
def test_wherever_an_input_stands_it_shows_what_its_command_prints(
    name: str, place: int, capsys: pytest.CaptureFixture[str]
) -> None:
    explorer = explorers()[name]
    one = explorer.inputs[place]
    for value in other_values(one):
        holds_to_its_command(explorer, moved(explorer, one, value), capsys)


def with_files(explorer: Explorer, files: Files, **values: Value) -> State:
    return State({**starting_state(explorer).values, **values}, files)


def test_explorers_of_files_show_what_their_commands_print(
    written: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    files = name_files(written)
    seen = set()
    for name, explorer in explorers().items():
        for one in explorer.inputs:
            if not isinstance(one, OpenFile):
                continue
            plain = shown_answer(explorer, with_files(explorer, files))
            for number in one.listed(files):
                if number == "none":
                    continue
                state = with_files(explorer, files, **{one.name: number})
                holds_to_its_command(explorer, state, capsys)
                if files.at(number).path.name == "profile.json":  # no operator in it was timed
                    continue
                assert shown_answer(explorer, state)["markup"] != plain["markup"]
                seen.add(name)
    assert {"roofline", "stack"} <= seen


def test_rows_of_a_ledger_are_switched_off_one_by_one(
    written: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    stack, files = explorers()["stack"], name_files(written)
    number = next(str(one.number) for one in files.files if one.path.name == "ledger.json")
    rows = stack_rows(written[number_of(files, number)])
    whole = with_files(stack, files, ledger=number)
    assert "measured side by side" in shown_answer(stack, whole)["sentence"]
    for left_out in [*((row,) for row in rows), tuple(rows)]:
        state = with_files(stack, files, ledger=number, without=left_out)
        assert read_state(stack.inputs, address_of(stack.inputs, state), files) == state
        holds_to_its_command(stack, state, capsys)
    controls = draw_controls(stack.inputs, whole)
    assert all(f'value="{row}"' in controls for row in rows)
    assert "Gain of mixed precision" not in controls
    assert "Gain of mixed precision" in draw_controls(stack.inputs, starting_state(stack))
    with pytest.raises(InputError, match="no such row there"):
        shown_answer(stack, with_files(stack, files, ledger=number, without=("no-such-row",)))


def number_of(files: Files, number: str) -> int:
    return [str(one.number) for one in files.files].index(number)


@pytest.mark.sweep(every=4)
@EVERY
def test_each_input_changes_the_picture(name: str) -> None:
    """An input that moved nothing would only look like one."""
    explorer = explorers()[name]
    before = shown_answer(explorer, starting_state(explorer))
    for one in explorer.inputs:
        if isinstance(one, RowSwitches | OpenFile):
            continue
        assert any(
            _shown_or_refused(explorer, moved(explorer, one, value)) != before
            for value in other_values(one)
        ), one.name


def _shown_or_refused(explorer: Explorer, state: State) -> dict[str, Any]:
    try:
        shown = shown_answer(explorer, state)
    except InputError:
        return {}
    return {key: shown[key] for key in ("sentence", "markup", "figures")}


@EVERY
def test_its_address_restores_its_state(name: str) -> None:
    explorer = explorers()[name]
    draws = random.Random(name)
    for _ in range(20):
        values = {
            one.name: draws.choice([one.default, *other_values(one)]) for one in explorer.inputs
        }
        state = State(values)
        assert read_state(explorer.inputs, address_of(explorer.inputs, state)) == state


@EVERY
def test_it_has_no_arithmetic_of_its_own(name: str) -> None:
    explorer = explorers()[name]
    module = importlib.import_module(f"ridgeline.studio.explorers.{name.replace('-', '_')}")
    assert module.EXPLORER is explorer
    tree = ast.parse(inspect.getsource(module))
    assert arithmetic_of(tree) == []


def arithmetic_of(tree: ast.AST) -> list[str]:
    """Every operator and computing name of a module."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ARITHMETIC):
            found.append(ast.unparse(node))
        if isinstance(node, ast.Name) and node.id in COUNTING:
            found.append(node.id)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [one.name for one in node.names]
            found += [one for one in names if one.partition(".")[0] in COUNTING]
    return found


def test_arithmetic_is_found_wherever_it_hides() -> None:
    source = "import math\nx = 2 * y\nx += 1\nz = sum(a)\nfrom numpy import dot\n"
    found = sorted(arithmetic_of(ast.parse(source)))
    assert found == ["2 * y", "math", "numpy", "sum", "x += 1"]


@EVERY
def test_its_defaults_can_be_chosen_and_its_words_are_whole(name: str) -> None:
    explorer = explorers()[name]
    assert explorer.question.endswith("?")
    assert explorer.why
    assert all(one.text and one.source for one in explorer.why)
    names = [one.name for one in explorer.inputs]
    assert len(set(names)) == len(names)
    for one in explorer.inputs:
        if isinstance(one, Slider):
            assert one.default in one.stops
            assert list(one.stops) == sorted(set(one.stops))
        elif isinstance(one, Selection):
            assert one.default in one.listed()
        elif isinstance(one, Several):
            assert set(one.default) <= set(one.listed())
            assert len(one.default) <= one.most


@EVERY
def test_its_figures_have_headings_to_be_named_by(name: str) -> None:
    explorer = explorers()[name]
    picture = explorer.draw(explorer.answer(starting_state(explorer)))
    for block in picture.blocks:
        assert not isinstance(block, doc.Figure), (
            "a figure stands in a chapter, whose title names it"
        )
