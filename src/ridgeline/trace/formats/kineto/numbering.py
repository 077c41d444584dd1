"""What repeats in events, by number: names and shapes as they come, threads by their process."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import numpy as np

from ridgeline.trace.columns import Narrow

_PROCESS, _THREAD = attrgetter("pid"), attrgetter("tid")


class Interned(dict[Any, int]):
    """Value → its number in order of appearance."""

    def __missing__(self, value: Any) -> int:
        number = self[value] = len(self)
        return number


class Threads(dict[Any, int]):
    """(process, thread) → number; a thread that is written as text and as a number is one."""

    def __init__(self) -> None:
        super().__init__()
        self.members: dict[tuple[int | str, int | str], int] = {}
        self.of_process: dict[int | str, _OfProcess] = {}

    def numbers(self, events: list[Any]) -> Narrow:
        """The numbers of the threads of events, which are mostly of one process."""
        processes = set(map(_PROCESS, events))
        if len(processes) == 1:
            (process,) = processes
            known = self.of_process.get(process)
            if known is None:
                known = self.of_process[process] = _OfProcess(self, process)
            found: Iterable[int] = map(known.__getitem__, map(_THREAD, events))
        else:
            found = (self[event.pid, event.tid] for event in events)
        return np.fromiter(found, np.int32, len(events))

    def named(self, names: dict[tuple[int | str, int | str], str]) -> dict[int, str]:
        """The names of the threads that did something, by their number."""
        written = {**self.members, **self}
        found = {number: names[pair] for pair, number in written.items() if pair in names}
        for pair in [pair for pair in names if str in (pair[0].__class__, pair[1].__class__)]:
            number = self.members.get((plain(pair[0]), plain(pair[1])))
            if number is not None:
                found[number] = names[pair]
        return found

    def __missing__(self, pair: tuple[int | str, int | str]) -> int:
        both = (plain(pair[0]), plain(pair[1]))
        number = self[pair] = self.members.setdefault(both, len(self.members))
        return number


class _OfProcess(dict[int | str, int]):
    """Thread → number, of one process: looked up without making a pair."""

    def __init__(self, every: Threads, process: int | str) -> None:
        super().__init__()
        self.every, self.process = every, process

    def __missing__(self, thread: int | str) -> int:
        number = self[thread] = self.every[self.process, thread]
        return number


def plain(identifier: int | str) -> int | str:
    """The number of a process or thread, though it is written as text."""
    if identifier.__class__ is str and identifier.isascii() and identifier.isdecimal():
        return int(identifier)
    return identifier
