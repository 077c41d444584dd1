"""Which measured frame stands for which simulated one.

A run is repeated from its first frame to its last, so that a scene that grows slow, a collection
every hundred frames or a stalled sensor comes as it came. Where more frames are simulated than were
measured, blocks of consecutive frames follow that begin anywhere in the run and go round its end:
the circular block bootstrap (Politis and Romano, 1992), which keeps the dependence in time within
blocks. All sensors and stages take the same block, so their dependence on each other stays too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ridgeline.plan.realtime.timing import CallSamples, Seconds, Slots

SHORTEST_BLOCK = 25
"""Frames of a block at least: room for what comes every few frames to come as often as it did."""


def block_slots(known: int) -> int:
    """Frames of a block; their number and their length grow alike with the run.

    >>> block_slots(300), block_slots(10_000), block_slots(8)
    (25, 100, 8)
    """
    return min(known, max(SHORTEST_BLOCK, math.isqrt(known)))


def source_slots(known: int, wanted: int, *, first: int = 0, seed: int = 0) -> Slots:
    """The measured slot of each simulated one.

    Args:
        known: Slots that were measured.
        wanted: Slots to simulate.
        first: The measured one to begin with: those before it are the warm-up, which is no part
            of what is drawn.
        seed: For the blocks.

    >>> source_slots(5, 4), source_slots(4, 3, first=1)
    (array([0, 1, 2, 3]), array([1, 2, 3]))
    """
    steady = max(1, known - first)
    parts = [first + np.arange(min(steady, wanted))]
    length = block_slots(steady)
    draws = np.random.default_rng(seed)
    missing = wanted - steady
    if missing > 0:
        starts = draws.integers(0, steady, size=-(-missing // length))
        blocks = (starts[:, None] + np.arange(length)) % steady
        parts.append(first + blocks.ravel()[:missing])
    return np.concatenate(parts)


@dataclass(frozen=True, slots=True)
class DrawnCalls:
    """Times of one stage by simulated slot; seconds, as lists, which are read one by one."""

    work: list[float]
    before: list[float]
    after: float

    @classmethod
    def of(cls, samples: CallSamples, slots: Slots, scale: float) -> DrawnCalls:
        """The call that was measured for each slot; where none was, the nearest one that was."""
        after = np.minimum(np.searchsorted(samples.slots, slots), len(samples.slots) - 1)
        before = np.maximum(after - 1, 0)
        nearer = slots - samples.slots[before] < samples.slots[after] - slots
        places = np.where(nearer, before, after)
        work: Seconds = samples.work[places] * scale
        return cls(work.tolist(), samples.before[places].tolist(), samples.after)
