"""Work for many together, and who of them spoils it: found by halves.

    halves = by_halves(requests, work)      # work([a, b, c, d]) raises because of c
    halves.done      [([a, b], …), ([d], …)]
    halves.failed    [(c, error)]

Of n, one culprit is found in 2 log₂ n further calls. `work` must be such that a call which failed
leaves nothing behind that a second call could trip over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

I = TypeVar("I")  # noqa: E741 - an item
R = TypeVar("R")


@dataclass(slots=True)
class Halves(Generic[I, R]):
    """What became of each item."""

    done: list[tuple[list[I], R]] = field(default_factory=list)
    """Items that were worked on together, with what came of it."""
    failed: list[tuple[I, BaseException]] = field(default_factory=list)
    """Items for which the work fails though they are alone."""
    left_out: list[I] = field(default_factory=list)
    """Items that were not ready."""


def by_halves(
    items: Sequence[I],
    work: Callable[[list[I]], R],
    *,
    ready: Callable[[list[I], list[I]], list[I]] = lambda part, _: part,
) -> Halves[I, R]:
    """Do the work for all, or else for parts of them, down to each alone.

    Args:
        items: In the order in which parts are tried.
        work: Of some items together.
        ready: Given a part and the items that are done, those of the part that may be worked on.
    """
    found: Halves[I, R] = Halves()
    parts = [list(items)]
    while parts:
        part = parts.pop()
        now = ready(part, [one for group, _ in found.done for one in group])
        found.left_out += [one for one in part if one not in now]
        if not now:
            continue
        try:
            found.done.append((now, work(now)))
        except NOT_A_FAILURE:
            raise
        except BaseException as error:
            if len(now) == 1:
                found.failed.append((now[0], error))
            else:
                middle = len(now) // 2
                parts += [now[middle:], now[:middle]]
    return found


NOT_A_FAILURE = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""A panic in a Rust library is no `Exception` either, but a failure."""
