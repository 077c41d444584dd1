"""What an explorer is, where they all are (one file of `explorers/` each), and what may be moved.

Every input reads its own word of the address and refuses what it cannot take in one sentence. The
state that comes of it is whole: what the address leaves out stands at its default.
"""

from __future__ import annotations

import difflib
import importlib
import math
import pkgutil
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, cast

from ridgeline import quantity
from ridgeline.errors import InputError
from ridgeline.report import document as doc
from ridgeline.studio.files import NO_FILES, Files

LONGEST_WORD = 400
"""Signs of a value in an address; nothing that is meant is longer."""

Value: TypeAlias = bool | int | float | str | tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slider:
    """A number on a scale of stops; an address may name any number between the ends."""

    name: str
    label: str
    stops: tuple[float, ...]
    default: float
    write: Callable[[float], str] = quantity.number
    """The value as it is read beside the slider."""
    plays: bool = False
    """Whether it is a moment that a button may play through, stop by stop."""
    unless: str = ""
    """The input of a file in whose place it stands: with a file chosen it is not shown."""

    @property
    def whole(self) -> bool:
        """Whether it counts things."""
        return all(isinstance(stop, int) for stop in self.stops)

    def read(self, text: str) -> Value:
        """The number in an address.

        Raises:
            InputError: It is none, or lies beyond the ends.
        """
        value = number_in(self.name, text, self.stops[0], self.stops[-1])
        if self.whole and value != int(value):
            raise InputError(f"{self.name} is {shortened(text)}: give a whole number")
        return int(value) if self.whole else value

    def shown_stops(self, value: float) -> tuple[float, ...]:
        """The stops, and the value among them where an address named another."""
        if value in self.stops:
            return self.stops
        place = bisect_left(self.stops, value)
        return (*self.stops[:place], value, *self.stops[place:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number that is typed."""

    name: str
    label: str
    low: float
    high: float
    default: float

    def read(self, text: str) -> Value:
        """The number in an address.

        Raises:
            InputError: It is none, or lies beyond the ends.
        """
        return number_in(self.name, text, self.low, self.high)


Options: TypeAlias = Mapping[str, str] | Callable[[], Mapping[str, str]]
"""Value → how it reads; a function where the catalogue has to be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """One of several words."""

    name: str
    label: str
    options: Options
    default: str

    def listed(self) -> Mapping[str, str]:
        """What may be chosen."""
        return _listed(self.options)

    def read(self, text: str) -> Value:
        """The word in an address.

        Raises:
            InputError: There is no such choice.
        """
        return _known(self.name, text, self.listed())


@dataclass(frozen=True, slots=True, kw_only=True)
class Several:
    """Any of several words, one at the least."""

    name: str
    label: str
    options: Options
    default: tuple[str, ...]
    most: int = 8

    def listed(self) -> Mapping[str, str]:
        """What may be chosen."""
        return _listed(self.options)

    def read(self, text: str) -> Value:
        """The words in an address, with commas between them.

        Raises:
            InputError: One is unknown, or there are none or too many.
        """
        known = self.listed()
        words = [_known(self.name, word, known) for word in text.split(",") if word]
        if not words:
            raise InputError(f"{self.name} is empty: choose one at the least")
        if len(words) > self.most:
            raise InputError(f"{self.name}: {len(words)} are chosen; {self.most} is the most")
        return tuple(dict.fromkeys(words))


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A choice between on and off."""

    name: str
    label: str
    default: bool = False
    unless: str = ""
    """The input of a file in whose place it stands: with a file chosen it is not shown."""

    def read(self, text: str) -> Value:
        """Whether an address says 1 or 0.

        Raises:
            InputError: It says something else.
        """
        if text not in ("0", "1"):
            raise InputError(f"{self.name} is {shortened(text)}: it must be 1 or 0")
        return text == "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFile:
    """One of the files that were named on the command line, of a kind; or none."""

    name: str
    label: str
    records: tuple[str, ...]
    """The kinds of record that the file may hold, as its `record` says; `trace` for traces."""
    default: str = "none"

    def listed(self, files: Files) -> Mapping[str, str]:
        """What may be chosen: nothing, or a file by its number."""
        found = {str(one.number): one.path.name for one in files.of_kinds(self.records)}
        return {"none": "none", **found}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSwitches:
    """Rows of the file that another input names, each of which may be left out."""

    name: str
    label: str
    file: str
    """The input that names the file."""
    rows: Callable[[Path], Sequence[str]]
    """What may be left out of it."""
    default: tuple[str, ...] = ()

    def read(self, text: str) -> Value:
        """What an address leaves out, with commas between the names."""
        return tuple(dict.fromkeys(word for word in text.split(",") if word))

    def listed(self, state: State) -> Sequence[str]:
        """The rows of the file that was chosen; nothing without one."""
        path = state.file(self.file)
        return () if path is None else self.rows(path)


Input: TypeAlias = Slider | Number | Selection | Several | Switch | OpenFile | RowSwitches


@dataclass(frozen=True, slots=True)
class State:
    """Where every input of an explorer stands."""

    values: Mapping[str, Value]
    files: Files = field(default=NO_FILES)

    def whole(self, name: str) -> int:
        """The value of a slider that counts things."""
        return cast("int", self.values[name])

    def number(self, name: str) -> float:
        """The value of a slider or a typed number."""
        return cast("float", self.values[name])

    def word(self, name: str) -> str:
        """The word that was chosen."""
        return cast("str", self.values[name])

    def words(self, name: str) -> tuple[str, ...]:
        """All that was chosen."""
        return cast("tuple[str, ...]", self.values[name])

    def on(self, name: str) -> bool:
        """Whether a switch is on."""
        return cast("bool", self.values[name])

    def file(self, name: str) -> Path | None:
        """The file that was chosen, if any."""
        word = self.word(name)
        return None if word == "none" else self.files.at(word).path


def read_state(
    inputs: Sequence[Input], query: Sequence[tuple[str, str]], files: Files = NO_FILES
) -> State:
    """The state that an address stands for.

    Raises:
        InputError: It names an input that is not there, one twice, or a value that cannot be.
    """
    known = {one.name: one for one in inputs}
    values: dict[str, Value] = {one.name: one.default for one in inputs}
    seen: set[str] = set()
    for name, text in query:
        if name not in known:
            raise InputError(f"no input {shortened(name)} here; there are {', '.join(known)}")
        if name in seen:
            raise InputError(f"{name} stands twice in the address; keep one")
        if len(text) > LONGEST_WORD:
            raise InputError(f"{name} has {len(text):,} signs; {LONGEST_WORD} is the most")
        seen.add(name)
        one = known[name]
        if isinstance(one, OpenFile):
            values[name] = _known(name, text, one.listed(files))
        else:
            values[name] = one.read(text)
    return State(values, files)


def address_of(inputs: Sequence[Input], state: State) -> list[tuple[str, str]]:
    """The pairs that `read_state` makes the same state of."""
    return [(one.name, written(state.values[one.name])) for one in inputs]


def written(value: Value) -> str:
    """A value as an address has it.

    >>> written(True), written(64), written(0.5), written(3e11), written(("h100", "a100"))
    ('1', '64', '0.5', '300000000000', 'h100,a100')
    """
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return str(value)


def number_in(name: str, text: str, low: float, high: float) -> float:
    """A finite number within bounds.

    Raises:
        InputError: It is none, or lies beyond them.
    """
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{name} is {shortened(text)}: give a number") from None
    if not math.isfinite(value) or not low <= value <= high:
        raise InputError(f"{name} is {shortened(text)}: give a number from {low:,g} to {high:,g}")
    return value


def shortened(text: str) -> str:
    """What an address held, as a message quotes it."""
    return repr(text if len(text) <= 40 else f"{text[:40]}…")


def _listed(options: Options) -> Mapping[str, str]:
    return options() if callable(options) else options


def _known(name: str, text: str, known: Mapping[str, str]) -> str:
    if text in known:
        return text
    near = difflib.get_close_matches(text, known, n=3, cutoff=0.5)
    some = near or list(known)[:6]
    raise InputError(f"{name} is {shortened(text)}: try {', '.join(some)}")


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
