"""A step that has failed, for all who are in it but the requests that make it fail.

Nothing is advanced before a step has succeeded: a forward writes keys and values of its own tokens
into blocks that stay as they are, tokens are picked from numbers that hang on the position alone,
so a second attempt with fewer requests gives each of them what the first would have.

Whose fault a failure is shows in who can be computed. Requests that fail alone while others do not
are at fault and end. If none can be computed, a forward with no request in it (`probe`) decides:
if even that fails, the engine is broken, the error goes on and the supervisor starts another one.

Who spoils work for many together is found by halves (`by_halves`): of n, one culprit in 2 log₂ n
further calls. The work must be such that a call which failed leaves nothing behind that a second
call could trip over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ridgeline.batching.sequence import Sequence as Tokens
from ridgeline.batching.sequence import Slice, Step
from ridgeline.errors import RidgelineError

I = TypeVar("I")  # noqa: E741 - an item
R = TypeVar("R")
W = TypeVar("W")


class RanksLost(RidgelineError):
    """The ranks of a model that is cut are not in the same step any more, or one has ended."""


NOT_A_FAILURE = (KeyboardInterrupt, SystemExit, GeneratorExit, RanksLost)
"""What no second attempt mends. A panic in a Rust library is no `Exception` either, but a
failure."""


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


@dataclass(slots=True)
class StepAttempt(Generic[W]):
    """What became of a step."""

    worked: list[W]
    """What came of its parts: mostly one, which is the whole."""
    failed: list[tuple[str, BaseException]] = field(default_factory=list)
    """Requests that are at fault."""
    postponed: list[Tokens] = field(default_factory=list)
    """Sequences that share a prefix which one of those should have computed."""


def without_culprits(
    step: Step,
    work: Callable[[Step], W],
    first: BaseException,
    *,
    request_of: Callable[[Tokens], str],
    block_size: int,
    probe: Callable[[], object],
) -> StepAttempt[W]:
    """Compute a step as far as it can be computed. Raises `first` where nothing can be.

    Args:
        step: At least one slice.
        work: Computes a part of a step.
        first: Why it cannot compute the whole.
        request_of: The id of a sequence's request: its sequences stay together.
        block_size: Tokens of a block.
        probe: The same kind of work without any request; raises if it cannot be done.
    """
    slices: dict[str, list[Slice]] = {}
    for one in step.slices:
        slices.setdefault(request_of(one.sequence), []).append(one)

    def work_on(requests: list[str]) -> W:
        wanted = set(requests)
        return work(Step(tuple(one for one in step.slices if request_of(one.sequence) in wanted)))

    found = by_halves(list(slices), work_on, ready=_Shared(slices, block_size).ready)
    if not found.done and not _works(probe):
        raise first
    postponed = [one.sequence for request in found.left_out for one in slices[request]]
    return StepAttempt([worked for _, worked in found.done], found.failed, postponed)


def _works(probe: Callable[[], object]) -> bool:
    try:
        probe()
    except NOT_A_FAILURE:
        raise
    except BaseException:  # whatever it says, the first error says it of the step
        return False
    return True


def _first_written(one: Slice, block_size: int) -> int:
    """The first of its sequence's blocks that a slice writes to."""
    return one.sequence.place(one.start, block_size) // block_size


class _Shared:
    """Who reads blocks that others fill in the same step: prefixes are shared at once."""

    def __init__(self, slices: dict[str, list[Slice]], block_size: int) -> None:
        self._fills = {
            request: {
                block
                for one in mine
                for block in one.sequence.blocks[_first_written(one, block_size) :]
            }
            for request, mine in slices.items()
        }
        filled = set().union(*self._fills.values())
        self._needs = {
            request: filled.intersection(
                block
                for one in mine
                for block in one.sequence.blocks[: _first_written(one, block_size)]
            )
            for request, mine in slices.items()
        }

    def ready(self, part: Sequence[str], done: Sequence[str]) -> list[str]:
        """The requests of a part whose blocks are filled before, or together with their own."""
        now = list(part)
        while True:
            filled = set[int]().union(*(self._fills[one] for one in (*done, *now)))
            kept = [one for one in now if self._needs[one] <= filled]
            if len(kept) == len(now):
                return now
            now = kept
