"""What an explorer is, and where they all are: one file of `explorers/` each."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ridgeline.report import document as doc
from ridgeline.studio.inputs import Input, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What an explorer shows of an answer."""

    sentence: str
    """What bounds the thing now, and what would move it."""
    blocks: Sequence[doc.Block]
    """What the report would show: figures, tables, values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """One formula behind a picture."""

    text: str
    """The formula, or the rule in words."""
    source: str
    """Paper and equation, or the room and file that holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explorer:
    """One thing to move and look at."""

    place: int
    """Where it stands in the list; no two stand at the same place."""
    title: str
    question: str
    """What it answers, in a sentence of a newcomer."""
    inputs: tuple[Input, ...]
    command: Callable[[State], list[str]]
    """The words after `ridgeline` that print the same answer with `--json`."""
    answer: Callable[[State], Any]
    """What that command prints."""
    draw: Callable[[Any], Picture]
    why: tuple[Formula, ...]
    simulates: bool = False
    """Whether an answer may take up to a second."""


@cache
def explorers() -> Mapping[str, Explorer]:
    """Name in addresses → explorer, in the order of their places."""
    from ridgeline.studio import explorers as room

    found: dict[str, Explorer] = {}
    for module in pkgutil.iter_modules(room.__path__):
        explorer = importlib.import_module(f"{room.__name__}.{module.name}").EXPLORER
        assert isinstance(explorer, Explorer), module.name
        found[module.name.replace("_", "-")] = explorer
    places = [one.place for one in found.values()]
    assert len(set(places)) == len(places), "two explorers stand at the same place"
    return dict(sorted(found.items(), key=lambda pair: pair[1].place))
