"""Two sides measured in turn, and what their rounds prove."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

import numpy as np

from ridgeline import quantity
from ridgeline.errors import InputError
from ridgeline.measure.statistics.intervals import RatioInterval
from ridgeline.measure.statistics.sequential import LOOKS, NOTHING_KNOWN, interval_of
from ridgeline.realtime.cures import Watched
from ridgeline.realtime.tuning.budget import FEWEST_FRAMES, block_seconds
from ridgeline.realtime.tuning.sides import SideProcess
from ridgeline.realtime.tuning.wire import FramesTimed, TimeFrames

MOST_ROUNDS = 18
_BLOCK_SECONDS = 0.8
_FEWEST_TAIL_FRAMES = 40
_HOPELESS_ROUNDS, _HOPELESS_RATIO = 2, 0.6
"""Rounds that all lose so much end a comparison: no look would find the opposite in them."""
_QUANTILES = {"p50": 0.5, "age": 0.5, "p99": 0.99}


@dataclass(slots=True)
class SideBySide:
    """What two sides, A and B, took; ratios are A over B: above 1, B is faster."""

    interval: RatioInterval = NOTHING_KNOWN
    a_rounds: list[float] = field(default_factory=list)
    b_rounds: list[float] = field(default_factory=list)
    a_latencies: list[float] = field(default_factory=list)
    b_latencies: list[float] = field(default_factory=list)
    a_stages: list[dict[str, float]] = field(default_factory=list)
    b_stages: list[dict[str, float]] = field(default_factory=list)
    hopeless: bool = False
    """Whether B lost its first rounds by so much that there were no others."""

    @property
    def round_ratios(self) -> list[float]:
        """A over B, round by round."""
        return [a / b for a, b in zip(self.a_rounds, self.b_rounds, strict=True)]


def statistic(latencies: Sequence[float], watched: Watched) -> float:
    """What is watched of one block."""
    if not latencies:
        raise InputError("no frame came out in a block of frames; see what the stages drop")
    if watched == "mean":
        return float(np.mean(latencies))
    return float(np.quantile(latencies, _QUANTILES[watched]))


def p99_over_p50(latencies: Sequence[float]) -> float:
    """How uneven frames are."""
    return statistic(latencies, "p99") / statistic(latencies, "p50")


def measure(
    a: SideProcess,
    b: SideProcess,
    *,
    watched: Watched,
    period_seconds: float,
    bar: float,
    until: float,
    on_progress: Callable[[str], None],
    rounds: int = MOST_ROUNDS,
) -> SideBySide:
    """Blocks of A and B in turn, A B B A …, until the ratio is known to lie above `bar` or below.

    A search of cures leaves B early where it loses its first rounds by far (`hopeless`).

    Args:
        a: The stack as it is.
        b: The same with something more.
        watched: The statistic of a block.
        period_seconds: Between frames of the first sensor, on both sides.
        bar: What decides.
        until: When to stop, on `monotonic`'s clock; no round is begun that would end later.
        on_progress: Told after each round.
        rounds: At most.
    """
    found = SideBySide()
    order = TimeFrames(
        frames=_frames_of_block(watched, period_seconds), period_seconds=period_seconds
    )
    longest = round_seconds(watched, period_seconds)
    while len(found.a_rounds) < rounds and monotonic() + longest <= until:
        began = monotonic()
        turns = [(a, found.a_rounds, found.a_latencies, found.a_stages),
                 (b, found.b_rounds, found.b_latencies, found.b_stages)]  # fmt: skip
        for side, values, latencies, stages in turns[:: 1 if len(found.a_rounds) % 2 == 0 else -1]:
            block = side.ask(order, FramesTimed)
            values.append(statistic(block.latencies, watched))
            latencies.extend(block.latencies)
            stages.append(block.stage_seconds)
        longest = max(longest, monotonic() - began)
        found.interval = interval_of(found.a_rounds, found.b_rounds)
        on_progress(f"round {len(found.a_rounds)}: {found.interval.ratio:.3f}×")
        decided = found.interval.low > bar or found.interval.high < bar
        if len(found.a_rounds) in LOOKS and decided and rounds == MOST_ROUNDS:
            break
        if len(found.a_rounds) == _HOPELESS_ROUNDS and rounds == MOST_ROUNDS:
            found.hopeless = max(found.round_ratios) < _HOPELESS_RATIO
            if found.hopeless:
                break
    return found


def round_seconds(watched: Watched, period_seconds: float) -> float:
    """How long a block on each of two sides takes."""
    return 2 * block_seconds(_frames_of_block(watched, period_seconds), period_seconds)


def _frames_of_block(watched: Watched, period_seconds: float) -> int:
    fewest = _FEWEST_TAIL_FRAMES if watched == "p99" else FEWEST_FRAMES
    return max(fewest, math.ceil(_BLOCK_SECONDS / period_seconds))


def verdict_words(found: SideBySide, *, kept: bool, bar: float) -> str:
    """Why a trial was kept or not, in words with its figures."""
    interval = found.interval
    if found.hopeless:
        lost = " and ".join(f"{ratio:.3f}×" for ratio in found.round_ratios)
        return f"given up after {len(found.round_ratios)} rounds of {lost}"
    if not np.isfinite(interval.high):
        rounds = "one round" if interval.rounds == 1 else f"{interval.rounds} rounds"
        return f"the time ran out after {rounds}: {interval.ratio:.3f}×"
    figures = f"{interval.ratio:.3f}× [{interval.low:.3f}, {interval.high:.3f}]"
    if kept:
        return f"kept, {figures}"
    if interval.high < bar:
        return f"not faster: {figures}"
    return f"not {quantity.percent(bar - 1)} faster beyond doubt: {figures}"
