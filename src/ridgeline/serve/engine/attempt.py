"""A step for all who are in it; where that fails, for all but the requests that make it fail.

Nothing is advanced before a step has succeeded: a forward writes keys and values of its own tokens
into blocks that stay as they are, tokens are picked from numbers that hang on the position alone,
so a second attempt with fewer requests gives each of them what the first would have.

Whose fault a failure is shows in who can be computed. Requests that fail alone while others do not
are at fault and end. If none can be computed, a forward with no request in it (`probe`) decides:
if even that fails, the engine is broken, the error goes on and the supervisor starts another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ridgeline.batching.sequence import Sequence as Tokens
from ridgeline.batching.sequence import Slice, Step
from ridgeline.serve.engine.halves import NOT_A_FAILURE, by_halves

W = TypeVar("W")


@dataclass(slots=True)
class Attempt(Generic[W]):
    """What became of a step."""

    worked: list[W]
    """What came of its parts: mostly one, which is the whole."""
    failed: list[tuple[str, BaseException]] = field(default_factory=list)
    """Requests that are at fault."""
    postponed: list[Tokens] = field(default_factory=list)
    """Sequences that share a prefix which one of those should have computed."""


def attempt(
    step: Step,
    work: Callable[[Step], W],
    *,
    request_of: Callable[[Tokens], str],
    block_size: int,
    probe: Callable[[], object],
) -> Attempt[W]:
    """Compute a step as far as it can be computed.

    Args:
        step: At least one slice.
        work: Computes a step; may be called again with parts of it.
        request_of: The id of a sequence's request: its sequences stay together.
        block_size: Tokens of a block.
        probe: The same kind of work without any request; raises if it cannot be done.
    """
    try:
        return Attempt([work(step)])
    except NOT_A_FAILURE:
        raise
    except BaseException as error:
        first = error
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
    return Attempt([worked for _, worked in found.done], found.failed, postponed)


def _works(probe: Callable[[], object]) -> bool:
    try:
        probe()
    except NOT_A_FAILURE:
        raise
    except BaseException:  # whatever it says, the first error says it of the step
        return False
    return True


class _Shared:
    """Who reads blocks that others fill in the same step: prefixes are shared at once."""

    def __init__(self, slices: dict[str, list[Slice]], block_size: int) -> None:
        self._fills = {
            request: {
                block for one in mine for block in one.sequence.blocks[one.start // block_size :]
            }
            for request, mine in slices.items()
        }
        filled = set().union(*self._fills.values())
        self._needs = {
            request: filled.intersection(
                block for one in mine for block in one.sequence.blocks[: one.start // block_size]
            )
            for request, mine in slices.items()
        }

    def ready(self, part: Sequence[str], done: Sequence[str]) -> list[str]:
        """Those of a part whose blocks are filled before, or together with their own."""
        now = list(part)
        while True:
            filled = set[int]().union(*(self._fills[one] for one in (*done, *now)))
            kept = [one for one in now if self._needs[one] <= filled]
            if len(kept) == len(now):
                return now
            now = kept
