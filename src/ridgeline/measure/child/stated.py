"""Sizes that a script states: arguments, constants of its main file, arguments of trainers.

How many micro-batches make a step, and how many samples one has, stand somewhere as whole numbers
under names that say so. Read here, they tell whoever judges the profile which of them were in
force; set here, a script runs with others. Nothing is set that does not hold the expected number.

A statement is called by its place and its name: `arguments:batch_size` (what argparse parsed),
`constants:BATCH_SIZE` (a global of the main file), `Accelerator:gradient_accumulation_steps`.
"""

from __future__ import annotations

import functools
import re
import sys
import weakref
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

from ridgeline.measure.child.guard import attempt
from ridgeline.measure.child.points import Points
from ridgeline.measure.guard.on_import import after_import
from ridgeline.patches import Undo, in_reverse, patch

_SPEAKS_OF_IT = re.compile(r"batch|accum", re.IGNORECASE)
_MOST = 1 << 20
_TRAINERS = {
    "accelerate.accelerator:Accelerator.__init__": "gradient_accumulation_steps",
    "lightning.pytorch.trainer.trainer:Trainer.__init__": "accumulate_grad_batches",
    "pytorch_lightning.trainer.trainer:Trainer.__init__": "accumulate_grad_batches",
}
"""Constructor → its argument for the micro-batches of a step."""

Change = tuple[int, int]
"""The number that is expected, and the one to put in its place."""


class Stated:
    """What was stated so far; built once per process."""

    def __init__(self) -> None:
        self._parsed: list[weakref.ref[Namespace]] = []
        self._made: dict[str, int] = {}

    def watch(self) -> None:
        """Remember what is parsed, and what trainers are made with, from now on."""
        patch("argparse:ArgumentParser.parse_known_args", self._around_parsing)
        for constructor in _TRAINERS:
            module = constructor.partition(":")[0]
            noting = functools.partial(self._around_making, constructor)
            after_import(module, functools.partial(patch, constructor, noting))

    def _around_parsing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def parse(*args: Any, **kwargs: Any) -> Any:
            parsed = original(*args, **kwargs)
            attempt(lambda: self._parsed.append(weakref.ref(parsed[0])), otherwise=None)
            return parsed

        return parse

    def _around_making(
        self, constructor: str, original: Callable[..., None]
    ) -> Callable[..., None]:
        keyword = _TRAINERS[constructor]

        @functools.wraps(original)
        def make(made: Any, *args: Any, **kwargs: Any) -> None:
            if is_size(kwargs.get(keyword)):
                self._made[f"{_class_of(constructor)}:{keyword}"] = kwargs[keyword]
            original(made, *args, **kwargs)

        return make

    def sizes(self) -> dict[str, int]:
        """Every whole number that stands under a name which speaks of batches."""
        found = dict(self._made)
        spaces = [vars(space) for ref in self._parsed if (space := ref()) is not None]
        for place, names in (("constants", constants()), *(("arguments", one) for one in spaces)):
            for name, value in list(names.items()):
                if isinstance(name, str) and _SPEAKS_OF_IT.search(name) and is_size(value):
                    found[f"{place}:{name}"] = value
        return found


def is_size(value: object) -> bool:
    """Is this a whole number that can count samples or micro-batches?"""
    return type(value) is int and 0 < value <= _MOST


def constants() -> dict[str, Any]:
    """The globals of the script's main file."""
    return vars(sys.modules["__main__"])


def restate(points: Points, changes: Mapping[str, Change], told: Callable[[str], object]) -> Undo:
    """Let the script state other numbers.

    Args:
        points: Where a technique is applied.
        changes: Statement → the number that it is expected to hold, and the one to put there.
        told: Called with each statement that was changed.
    """
    parsed = {_name(one): change for one, change in changes.items() if _is_at(one, "arguments")}
    globals_ = {_name(one): change for one, change in changes.items() if _is_at(one, "constants")}
    undos: list[Undo] = []

    def replaced(names: Any, wanted: Mapping[str, Change], place: str) -> None:
        for name, (before, after) in wanted.items():
            if names.get(name) == before:
                names[name] = after
                told(f"{place}:{name}")

    def around_parsing(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def parse(*args: Any, **kwargs: Any) -> Any:
            found = original(*args, **kwargs)
            attempt(replaced, vars(found[0]), parsed, "arguments", otherwise=None)
            return found

        return parse

    if parsed:
        undos.append(patch("argparse:ArgumentParser.parse_known_args", around_parsing))
    if globals_:
        # By then they hold what the script gave them, and no batch has been drawn.
        def state(*_seen: object) -> None:
            replaced(constants(), globals_, "constants")

        state.__module__ = told.__module__
        points.on_loader.append(state)
        points.on_optimizer_made.append(state)
        undos += [
            lambda: points.on_loader.remove(state),
            lambda: points.on_optimizer_made.remove(state),
        ]
    for constructor, keyword in _TRAINERS.items():
        statement = f"{_class_of(constructor)}:{keyword}"
        if statement in changes:
            undos.append(_made_with(constructor, keyword, statement, changes[statement], told))
    return in_reverse(undos)


def _made_with(
    constructor: str, keyword: str, statement: str, change: Change, told: Callable[[str], object]
) -> Undo:
    """Another argument of a trainer that is constructed from now on."""
    before, after = change
    placed: list[Undo] = []

    def around(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def make(made: Any, *args: Any, **kwargs: Any) -> None:
            if kwargs.get(keyword) == before:
                kwargs[keyword] = after
                told(statement)
            original(made, *args, **kwargs)

        return make

    module = constructor.partition(":")[0]
    after_import(module, lambda: placed.append(patch(constructor, around)))
    return in_reverse(placed)


def _class_of(constructor: str) -> str:
    return constructor.partition(":")[2].partition(".")[0]


def _is_at(statement: str, place: str) -> bool:
    return statement.partition(":")[0] == place


def _name(statement: str) -> str:
    return statement.partition(":")[2]
