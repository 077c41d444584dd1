"""The same draws in every compared run, also where a script asks for chance: no seed, or the clock.

`numpy.random.default_rng()` takes its seed from the operating system, and `manual_seed(time())`
from the clock: two runs of such a script train on other batches, whatever was seeded before its
first line, and a comparison of their losses tells no mistake any more. Each such draw is answered
by a number that depends on where it is asked (the rank, the worker, how many were asked before),
so that generators still differ from each other, and runs do not.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import multiprocessing
import os
import time
from collections.abc import Callable
from typing import Any

import torch

from ridgeline.measure.child.guard import attempt
from ridgeline.patches import patch

SEEDING = (
    "torch:manual_seed", "torch.random:manual_seed", "random:seed", "numpy.random:seed",
    "numpy.random:default_rng",
)  # fmt: skip
"""Calls whose seed may be none at all, or the time of day."""
_UNITS_PER_SECOND = (1, 10**3, 10**6, 10**9)
"""In which clocks are read: seconds to nanoseconds."""
_NEAR_SECONDS = 3600.0
_SEED_BITS = 31


class Entropy:
    """Answers what would be asked of chance, from a base and the place of the question."""

    def __init__(self, base: int) -> None:
        self._base = base
        self._asked = itertools.count()

    def bits(self, count: int) -> int:
        """So many bits, other ones each time."""
        place = (
            self._base, next(self._asked), torch.initial_seed(), os.environ.get("RANK"),
            multiprocessing.current_process().name,
        )  # fmt: skip
        digest = hashlib.shake_256(repr(place).encode()).digest((count + 7) // 8)
        return int.from_bytes(digest, "little") >> (-count % 8)

    def seed(self) -> int:
        """A seed that every generator takes."""
        return self.bits(_SEED_BITS)


def pin_entropy(base: int) -> None:
    """Answer by `base` what the script's generators would ask of chance.

    Python's own `random.Random()` is left alone: temporary files are named by it.
    """
    entropy = Entropy(base)
    names = [name for name in SEEDING if not name.startswith("numpy")]
    try:
        import numpy.random  # noqa: F401
    except ImportError:
        pass
    else:
        names = list(SEEDING)
        patch("numpy.random.bit_generator:randbits", lambda _: entropy.bits)
    for name in names:
        asks_nothing = name != "numpy.random:default_rng"  # that one asks `randbits`
        patch(name, functools.partial(_pinned, entropy, asks_nothing))
    for name in ("torch:seed", "torch.random:seed"):
        patch(name, functools.partial(_seeding, entropy))


def _pinned(entropy: Entropy, asks_nothing: bool, original: Callable[..., Any]) -> Any:
    """The seeding call, with a seed of ours where it was given none or the clock's."""

    @functools.wraps(original)
    def seed(*args: Any, **kwargs: Any) -> Any:
        found = [*args, *kwargs.values()][:1]
        if len(args) + len(kwargs) <= 1 and attempt(
            _is_by_chance, found, asks_nothing, otherwise=False
        ):
            args, kwargs = (entropy.seed(),), {}
        return original(*args, **kwargs)

    return seed


def _seeding(entropy: Entropy, original: Callable[..., int]) -> Callable[..., int]:
    """`torch.seed()`, which draws a seed, sets it and tells it."""

    @functools.wraps(original)
    def seed() -> int:
        drawn = entropy.seed()
        torch.random.manual_seed(drawn)
        return drawn

    return seed


def _is_by_chance(given: list[Any], asks_nothing: bool) -> bool:
    if not given or given[0] is None:
        return asks_nothing
    return isinstance(given[0], (int, float)) and is_clock(given[0], time.time())


def is_clock(seed: float, now: float) -> bool:
    """Is a seed the time of day, in any of the units in which it is read?

    >>> is_clock(1_800_000_000, now=1_800_000_007.5), is_clock(42, now=1_800_000_007.5)
    (True, False)
    >>> is_clock(1_800_000_000_123, now=1_800_000_007.5)
    True
    """
    return any(abs(seed - now * unit) < _NEAR_SECONDS * unit for unit in _UNITS_PER_SECOND)
