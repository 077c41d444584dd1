"""Two runs of the same script, measured in turn: A B B A …, so that drift hits both alike.

Both live in the pool; while one runs, the other is frozen at a step boundary. They do the same
step of the script in every round, so that steps of uneven work compare like with like: whoever
is behind catches up first, or the one ahead is started anew, whichever is quicker. Where every step
is seen to be the same work they go on from where they stand, and where it repeats after so many
(`period_of`: short epochs, evaluations) from the same place in that. The first step after a thaw
refills caches and is left out, where steps are short enough for that to matter. Where two copies do
not fit on the device, each block is a run of its own.

Where a long step returns after so many others (an agent plays, then learns), a block is whole
cycles, so that the ratio is that of the run and not of its short steps. Where there is no time for
rounds of these, short steps are compared, and what long ones take is counted as unchanged: a gain
is then no less than is said.

How many rounds it takes is decided by what they show (`measure/statistics/sequential.py`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from time import monotonic

from ridgeline.errors import RidgelineError
from ridgeline.measure.statistics.cycles import StepCycle, cycle_of, usual_steps
from ridgeline.measure.statistics.intervals import LEVEL_WITHIN, is_level, is_steady
from ridgeline.measure.statistics.sequential import (
    LOOKS,
    MOST_ROUNDS,
    interval_of,
    next_look,
)
from ridgeline.tune.ab_plan import ABPlan
from ridgeline.tune.ab_result import ABRun
from ridgeline.tune.effects import ended_early, refusal, took_effect
from ridgeline.tune.pool import (
    SLOW_SECONDS,
    Live,
    Pool,
    Variant,
    VariantFailed,
    period_of,
)

_BLOCK_SECONDS = 0.6
_MIN_BLOCK, _MAX_BLOCK = 1, 512
_LEAD_IN_BELOW_SECONDS = 0.5
"""Refilling caches after a thaw takes milliseconds: a step longer than this does not feel it."""
_WARMUP_BLOCK = 2
_MAX_WARMUP = 40
_ENOUGH_WARMUP, _ENOUGH_WARMUP_SECONDS = 6, 6.0
"""A run whose steps never level (a busy machine) is warm after so many that took so long: the
first two, which compile and allocate, not counted. What unrest is left, the rounds will show."""
LOOK_STEPS = 2
_SHORT_STEPS, _LATE_SHARE, _WARMUP_SHARE = 400, 0.3, 0.25
"""A script that ends after so few steps is started anew for each question that finds it so far
gone, and warms up in this share of itself."""
_MOST_STARTS = 4
"""A short script is started so often for one question."""
_MOOD = 0.5
"""Share of the longer start by which two starts of the same script may differ on a busy machine."""
_ROUNDS_OF_A_START = 6
"""So many rounds should fit into what is left of a short script."""
_PERIOD_SHARE = 0.1
"""Share of the time for rounds that one side may take to come to the other's place in an epoch."""
_ROUNDS_OF_CYCLES = 8
"""So many rounds of whole cycles must fit into the time that is left for rounds."""


def run_ab(pool: Pool, a: Variant, b: Variant, plan: ABPlan, begun: ABRun | None = None) -> ABRun:
    """Measure B against A; `begun`, where they were measured already, is gone on with.

    Raises:
        VariantFailed: the script of one side failed or was killed.
    """
    result = begun or ABRun()
    starts = 0
    while result.rounds < MOST_ROUNDS and not (result.rounds and plan.is_over()):
        before, length = result.rounds, pool.length
        if plan.resident:
            _side_by_side(pool, a, b, plan, result)
        else:
            _one_at_a_time(pool, a, b, plan, result)
        # A script that turned out to be short is tried once more, by its length.
        learned = pool.length is not None and length != pool.length and not plan.is_over()
        if result.had_no_effect or (result.rounds == before and not learned):
            break
        starts += 1
        if plan.is_decided(result.interval) or (plan.resident and starts == _MOST_STARTS):
            break
        if plan.resident:
            plan.pause()
    result.interval = interval_of(result.a_rounds, result.b_rounds)
    return result


def _side_by_side(pool: Pool, a: Variant, b: Variant, plan: ABPlan, result: ABRun) -> None:
    """Rounds until it is decided, or one of the scripts ends."""
    sides = []
    for name, variant in (("a", a), ("b", b)):
        live = _ready(pool, name, variant, plan)
        sides.append(live)
        _keep_losses(result, name, live)
        if live.ended:
            pool.ended(live)
            result.too_short = ended_early(live)
            return
    if not took_effect(a, b, sides[1].applied):
        result.had_no_effect, result.refusal = True, refusal(a, b, sides[1])
        return
    result.startup_seconds = _slower_start(*sides)
    sides = _aligned(pool, sides, plan, period := _period(sides, plan))
    result.b_peak_memory_bytes = sides[1].peak_memory_bytes
    lead, block = _block(sides, pool.length)
    plan.begin(sides[1].start_seconds)
    # Time is left to others where nobody can foresee a start: rounds have limits of their own.
    pool.deadline = max(pool.deadline, plan.deadline)
    begun, since = result.rounds, monotonic()
    while result.rounds < MOST_ROUNDS and not _is_out_of_time(plan, result):
        if period != (period := _period(sides, plan)):
            sides = _aligned(pool, sides, plan, period)
        turn, fresh = result.rounds % 2 == 1, result.rounds == begun
        if not _round(sides, lead, block, result, flip=turn, fresh=fresh, even=period == 1):
            break
        if cycles := _whole_cycles(sides, block, plan, pool.cycle):
            block = cycles
            result.forget_after(begun)
        elif pool.cycle is not None and block % pool.cycle.steps:
            _count_long_steps_as_unchanged(result, block, pool.cycle.long_share)
        result.interval = interval_of(result.a_rounds, result.b_rounds)
        if result.rounds in LOOKS and result.rounds > begun:
            plan.on_progress(_so_far(result))
            if plan.is_decided(result.interval):
                break
            each = (monotonic() - since) / (result.rounds - begun)
            more = (next_look(result.rounds) or result.rounds) - result.rounds
            if not plan.has_time_for(each * more, result.interval):
                plan.give_up()
                break
    for live in sides:
        if live.ended:
            pool.ended(live)
    _keep(result, sides)


def _is_out_of_time(plan: ABPlan, result: ABRun) -> bool:
    """Before the first look all of the time may pass; after one there is time for the next."""
    if result.rounds < min(LOOKS):
        return plan.is_over(result.interval)
    return monotonic() > plan.deadline or plan.seconds <= 0


def _so_far(result: ABRun) -> str:
    return f"  {result.rounds} rounds: {result.interval.in_words}"


def _ready(pool: Pool, name: str, variant: Variant, plan: ABPlan) -> Live:
    """The variant's run, warm and looked at; one that died since it was last asked starts anew.

    Memory and gradients are looked at here, before anything is timed: so both sides of every
    A/B run have been under the profiler, or neither.
    """
    was_alive = pool.alive(variant) is not None
    try:
        if _is_nearly_over(pool, variant):
            pool.drop(variant)
        live = pool.take(variant)
        _warm_up(live, plan, pool.length)
        if not live.was_looked_at and not live.ended:
            live.was_looked_at = True
            if pool.has_memory_looked_at:
                live.steps(1 if _is_slow(live.seconds) else LOOK_STEPS, "profiler")
    except RidgelineError as error:
        pool.drop(variant)
        if was_alive:
            return _ready(pool, name, variant, plan)
        raise VariantFailed(name, error) from error
    return live


def _is_nearly_over(pool: Pool, variant: Variant) -> bool:
    """Is too little left of a short script for rounds?"""
    live = pool.alive(variant)
    short = pool.length is not None and pool.length < _SHORT_STEPS
    return live is not None and short and live.index > _LATE_SHARE * (pool.length or 0)


def _warm_up(live: Live, plan: ABPlan, length: int | None) -> None:
    """Run until the step time has settled; of a short script no more than its share."""
    most = math.inf if length is None else _WARMUP_SHARE * length
    begun = len(live.seconds)
    while not (live.is_warm or live.ended):
        live.steps(1 if _is_slow(live.seconds) else _WARMUP_BLOCK)
        if live.preparing and not plan.is_over():
            begun = len(live.seconds)  # what it does once it is ready has another pace
            continue
        if plan.is_over() or _is_warm(live.seconds[begun:]) or live.index >= most:
            live.warmed_up()


def _is_warm(seconds: Sequence[float]) -> bool:
    """Level by two windows, or plainly level over the last few steps; or it takes too long.

    Of slow steps two alike are enough: what the very first one did is behind them.
    """
    stepped = sum(seconds[2:])
    last = seconds[-2:]
    if len(last) == 2 and _is_slow(last) and max(last) < (1 + LEVEL_WITHIN) * min(last):
        return True
    if len(seconds) >= _MAX_WARMUP:
        return True
    if len(seconds) >= _ENOUGH_WARMUP and stepped > _ENOUGH_WARMUP_SECONDS:
        return True
    return is_level(seconds) or is_steady(seconds)


def _is_slow(seconds: Sequence[float]) -> bool:
    return min(seconds, default=0.0) > SLOW_SECONDS


def _period(sides: list[Live], plan: ABPlan) -> int | None:
    """Steps after which the work repeats; epochs that there is no time to wait for do not count."""
    period = period_of(sides)
    if period is None or any(side.evaluated for side in sides):
        return period
    wait = period * max(map(_pace, sides))
    return period if wait <= _PERIOD_SHARE * plan.left_seconds else 1


def _aligned(pool: Pool, sides: list[Live], plan: ABPlan, period: int | None) -> list[Live]:
    """Both at the same step of the script, or at the same place where its work repeats."""
    restarted = False
    while sides[0].index != sides[1].index:
        behind, ahead = sorted(sides, key=lambda side: side.index)
        gap = ahead.index - behind.index
        if period is not None:
            _run(behind, "ab"[sides.index(behind)], gap % period)
            break
        anew = ahead.start_seconds + _pace(ahead) * max(behind.index - _MAX_WARMUP // 4, 0)
        if anew < _pace(behind) * gap and not restarted and not plan.is_over():
            restarted = True
            name = "ab"[sides.index(ahead)]
            pool.drop(ahead.variant)
            sides["ab".index(name)] = _ready(pool, name, ahead.variant, plan)
            continue
        _run(behind, "ab"[sides.index(behind)], gap)
        if behind.ended:
            break
    return sides


def _pace(live: Live) -> float:
    return statistics.median(live.seconds[-10:]) if live.seconds else math.inf


def _block(sides: list[Live], length: int | None) -> tuple[int, int]:
    """Steps to lead in with, and steps to time, of one block: of a short script, a few rounds."""
    slow = max(_pace(side) for side in sides)
    block = max(_MIN_BLOCK, min(_MAX_BLOCK, math.ceil(_BLOCK_SECONDS / slow)))
    lead = 1 if min(_pace(side) for side in sides) < _LEAD_IN_BELOW_SECONDS else 0
    if length is not None:
        left = length - max(side.index for side in sides)
        block = max(_MIN_BLOCK, min(block, left // _ROUNDS_OF_A_START - lead))
    return lead, block


def _whole_cycles(sides: list[Live], block: int, plan: ABPlan, known: StepCycle | None) -> int:
    """Steps of a block of whole cycles; 0 where this one is, or there are none, or no time."""
    settled = [side.seconds[side.settled_after :] for side in sides]
    seen = (known, *map(cycle_of, settled))
    cycle = max((one.steps for one in seen if one is not None), default=0)
    if not cycle or block % cycle == 0:
        return 0
    steps = math.ceil(block / cycle) * cycle
    of_a_round = steps * sum(map(statistics.fmean, settled))
    return steps if _ROUNDS_OF_CYCLES * of_a_round <= plan.left_seconds else 0


def _count_long_steps_as_unchanged(result: ABRun, block: int, long_share: float) -> None:
    """Let the last round tell of short steps, and of long ones that take A's time on both sides."""
    a, b = (usual_steps(one[-block:], among=one) for one in (result.a_steps, result.b_steps))
    if not (a and b):
        result.forget_after(result.rounds - 1)
        return
    of_a = statistics.fmean(a)
    beside = of_a * long_share / (1.0 - long_share)
    result.a_rounds[-1], result.b_rounds[-1] = of_a + beside, statistics.fmean(b) + beside


def _round(
    sides: list[Live], lead: int, block: int, result: ABRun, *, flip: bool, fresh: bool, even: bool
) -> bool:
    """One block of each, of the same steps unless all are alike; False when a script ended."""
    timed: list[list[float]] = [[], []]
    used = [0.0, 0.0]
    for turn, place in enumerate((1, 0) if flip else (0, 1)):
        live = sides[place]
        before, cpu = len(live.seconds), live.cpu_seconds
        # Who begins a round ran last in the one before: its caches are still full. Yet where steps
        # differ, in work or within an epoch, it leads in as the other does: both time the same.
        lead_in = 0 if turn == 0 and not fresh and even else lead
        _run(live, "ab"[place], lead_in + block)
        steps = live.seconds[before:]
        if len(steps) < lead_in + block:
            return False
        timed[place] = steps[lead_in:]
        used[place] = (live.cpu_seconds - cpu) / len(steps)
    a, b = timed
    result.a_rounds.append(sum(a) / len(a))
    result.b_rounds.append(sum(b) / len(b))
    result.a_steps += a
    result.b_steps += b
    if all(live.hellos[0].device == "cpu" for live in sides) and min(used) > 0:
        result.a_cpu_rounds.append(used[0])
        result.b_cpu_rounds.append(used[1])
    return not any(side.ended for side in sides)


def _run(live: Live, name: str, steps: int) -> None:
    if not steps:
        return
    try:
        live.steps(steps)
    except RidgelineError as error:
        raise VariantFailed(name, error) from error


def _one_at_a_time(pool: Pool, a: Variant, b: Variant, plan: ABPlan, result: ABRun) -> None:
    """A round of two whole starts: for devices that hold one copy only."""
    blocks: list[list[float]] = []
    for name, variant in (("a", a), ("b", b)):
        for other in (a, b):
            pool.drop(other)
        live = _ready(pool, name, variant, plan)
        plan.begin()
        before = len(live.seconds)
        if not live.ended:
            _, block = _block([live], None)
            _run(live, name, max(block, 2))
        blocks.append(live.seconds[before:])
        _keep_losses(result, name, live)
        if name == "b":
            result.b_peak_memory_bytes = live.peak_memory_bytes
            result.b_non_finite, result.b_places = live.non_finite, live.places
            result.had_no_effect = not took_effect(a, b, live.applied)
            result.refusal = refusal(a, b, live)
        if not blocks[-1]:
            return
    result.a_rounds.append(statistics.mean(blocks[0]))
    result.b_rounds.append(statistics.mean(blocks[1]))
    result.a_steps += blocks[0]
    result.b_steps += blocks[1]
    result.interval = interval_of(result.a_rounds, result.b_rounds)


def _slower_start(a: Live, b: Live) -> float | None:
    """How much later B settled; None where that may as well be the machine's mood."""
    before, after = a.startup_seconds, b.startup_seconds
    if before is None or after is None or abs(after - before) < _MOOD * max(before, after):
        return None
    return after - before


def _keep(result: ABRun, sides: list[Live]) -> None:
    """Keep the longest trajectories seen, and what was seen of B beside its times."""
    for name, live in zip("ab", sides, strict=True):
        _keep_losses(result, name, live)
    result.b_peak_memory_bytes = max(result.b_peak_memory_bytes, sides[1].peak_memory_bytes)
    result.b_non_finite, result.b_places = sides[1].non_finite, sides[1].places


def _keep_losses(result: ABRun, name: str, live: Live) -> None:
    known = result.a_losses if name == "a" else result.b_losses
    if len(live.losses) > len(known):
        known[:] = live.losses
        if name == "a":
            result.a_updates = live.updates
        else:
            result.b_updates = live.updates
