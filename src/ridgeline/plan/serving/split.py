"""Prompts on some devices and the rest on others: how many of which (`plan serving --split`).

For every pair of candidates, N replicas that only compute prompts and M that only decode, for the
load and the targets of mean latencies:

    decode     the most sequences whose step is within the time per token, less the headroom
    prefill    a queue of prompts one by one (M/D/1), s seconds each, at a use u of N replicas:
               wait = s u / 2 (1 - u)
    TTFT       the request's own time, the wait, the prompt, the cache's way to the decode replica
               (`cost/serving/disaggregated.py`), one step there

A compute-rich device wants to be the one that reads prompts, a device of much bandwidth for its
price the one that decodes; whether they earn what handing over costs is what this answers. Both
sides keep weights and cache in the same formats.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ridgeline.cost.arrays import Floats
from ridgeline.cost.serving.load import most_running
from ridgeline.cost.serving.mean_steps import decode_seconds, prompt_seconds
from ridgeline.cost.serving.setting import cached_bytes
from ridgeline.hardware import catalogue
from ridgeline.plan.serving.coefficients import Calibration
from ridgeline.plan.serving.estimate import Arrays, arrays_of, ranged
from ridgeline.plan.serving.question import ServingQuestion
from ridgeline.plan.serving.spreads import factor_of
from ridgeline.records.serving_plan import SplitOption, SplitPool

LEVELS = 64
"""Points of the grid of sequences that decode at once, evenly spaced in the logarithm."""
ROUNDS = 40
"""Damped rounds of finding how many decode at once (Little's law)."""
MOST_USE = 1.0 - 1e-6
"""The share of its time that prefill works at most; at 1 a queue has no end."""
HALVINGS = 40
"""Halvings of the range in which that share is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTask:
    """A load, its targets of mean latencies, and what is left free."""

    completion: float
    users: float | None
    rate: float | None
    ttft_seconds: float
    itl_seconds: float
    headroom: float
    link_bytes_per_second: float
    """Over which a prompt's cache leaves a replica."""
    yielded: float = 1.0
    """Tokens of a sequence that a step yields, more than one where guesses hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sides:
    """What each candidate does as either side, one number a candidate."""

    prompt: Floats
    """Seconds in which a prompt that is alone is computed."""
    between: Floats
    """Seconds between two prompts of a replica at full use."""
    way: Floats
    """Seconds until a prompt's cache is at the decode replica."""
    request: Floats
    """Seconds of a request outside of steps."""
    holds_prompt: Floats
    """1 where weights and one prompt fit."""
    running: Floats
    """Sequences that decode at once within the target, less the headroom; 0: none."""
    step: Floats
    """Seconds of a step with so many."""


def split_options(
    replicas: list[ServingQuestion], task: SplitTask, calibration: Calibration
) -> list[SplitOption]:
    """The cheapest pair, and the cheapest whose sides are different devices, if that is another."""
    if not replicas:
        return []
    devices = np.array([float(one.tp) for one in replicas])
    arrays = arrays_of(replicas, calibration)
    sides = _sides(arrays, devices, task)
    found = sorted(_pairs(replicas, sides, task), key=lambda one: one[:2])
    chosen: list[SplitOption] = []
    for _, _, prefill, decode, counts in found:
        differ = replicas[prefill].device.name != replicas[decode].device.name
        if not chosen or differ:
            at_work = _at_work(arrays, sides, task, (prefill, decode), counts)
            pair = (replicas[prefill], replicas[decode])
            way = float(sides.way[prefill])
            chosen.append(_option(pair, counts, at_work, way, task, calibration))
        if differ:
            break
    return chosen


def _sides(arrays: Arrays, devices: Floats, task: SplitTask) -> _Sides:
    hosted, rates, lengths = arrays.hosted, arrays.rates, arrays.lengths
    size = len(lengths.prompt)
    one, none = np.ones(size), np.zeros(size)
    sent = cached_bytes(hosted, lengths.prompt) * devices / task.link_bytes_per_second
    alone = prompt_seconds(hosted, rates, lengths, one, none)
    full = prompt_seconds(hosted, rates, lengths, np.asarray(hosted.groups, float), none)
    most = most_running(hosted, rates, lengths)
    running, step = _within(arrays, most, task.itl_seconds * task.yielded)
    return _Sides(
        prompt=alone,
        between=full / hosted.groups,
        way=np.asarray(rates.handover_seconds + sent),
        request=np.asarray(rates.request_seconds + none),
        holds_prompt=(most >= 1.0).astype(float),
        running=running * (1.0 - task.headroom),
        step=step,
    )


def _within(arrays: Arrays, most: Floats, most_seconds: float) -> tuple[Floats, Floats]:
    """The most sequences whose step takes so long at most, and that step."""
    running, step = np.zeros_like(most), np.zeros_like(most)
    for share in np.linspace(0.0, 1.0, LEVELS):
        level = np.maximum(most, 1.0) ** share
        seconds = decode_seconds(arrays.hosted, arrays.rates, arrays.lengths, level)
        good = (seconds <= most_seconds) & (most >= 1.0)
        running, step = np.where(good, level, running), np.where(good, seconds, step)
    return running, step


def _pairs(
    replicas: list[ServingQuestion], sides: _Sides, task: SplitTask
) -> Iterable[tuple[float, int, int, int, tuple[int, int]]]:
    """Cost, devices, both candidates and the replicas of each, for the pairs that serve it."""
    prices = [catalogue.typical_usd_per_device_hour(one.device.name) for one in replicas]
    for prefill, first in enumerate(replicas):
        if not sides.holds_prompt[prefill]:
            continue
        for decode, second in enumerate(replicas):
            same = (first.weights, first.cache_kind) == (second.weights, second.cache_kind)
            if not same or sides.running[decode] < 1.0:
                continue
            counts = _counts(sides, task, prefill, decode)
            if counts is None:
                continue
            devices = counts[0] * first.tp + counts[1] * second.tp
            left, right = prices[prefill], prices[decode]
            cost = math.inf
            if left is not None and right is not None:
                cost = counts[0] * first.tp * left + counts[1] * second.tp * right
            yield cost, devices, prefill, decode, counts


def _counts(sides: _Sides, task: SplitTask, prefill: int, decode: int) -> tuple[int, int] | None:
    """Replicas of each side; None: the first token comes too late even of an idle pair."""
    least = _first(sides, prefill, decode)
    slack = task.ttft_seconds - least
    if slack <= 0.0:
        return None
    between = float(sides.between[prefill])
    use = min(1.0 - task.headroom, 2.0 * slack / (2.0 * slack + between))
    rate = _rate(sides, task, prefill, decode, use)
    answering = task.completion * float(sides.step[decode]) / task.yielded
    return (
        max(math.ceil(rate * between / use - 1e-9), 1),
        max(math.ceil(rate * answering / float(sides.running[decode]) - 1e-9), 1),
    )


def _rate(sides: _Sides, task: SplitTask, prefill: int, decode: int, use: float) -> float:
    """The rate of requests, as given or as so many users ask (Little's law)."""
    if task.rate is not None:
        return task.rate
    assert task.users is not None
    first = _first(sides, prefill, decode) + _wait(float(sides.between[prefill]), use)
    return task.users / (first + _further(task, float(sides.step[decode])))


def _further(task: SplitTask, step_seconds: float) -> float:
    """The time of a completion's tokens behind the first."""
    return (task.completion - 1.0) * step_seconds / task.yielded


def _first(sides: _Sides, prefill: int, decode: int) -> float:
    """The time to the first token of a request that waits for no other."""
    parts = (sides.request[prefill], sides.prompt[prefill], sides.way[prefill], sides.step[decode])
    return float(sum(parts))


def _wait(between: float, use: float) -> float:
    """The mean wait in a queue with service of constant length (Pollaczek and Khinchine)."""
    return between * use / (2.0 * (1.0 - use))


def _use_by_users(users: float, rest: float, between: float) -> float:
    """How busy prefill is with so many users a worker, each away for `rest` beside its wait.

    The busier it is the longer they wait, and the fewer requests they send: halved to where both
    agree.
    """
    low, high = 0.0, MOST_USE
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        sent = users / (rest + _wait(between, middle))
        low, high = (middle, high) if sent * between > middle else (low, middle)
    return low


@dataclass(frozen=True, slots=True, kw_only=True)
class _AtWork:
    """A pair under its load."""

    first_seconds: float
    step_seconds: float
    use: float
    rate: float


def _at_work(
    arrays: Arrays, sides: _Sides, task: SplitTask, pair: tuple[int, int], counts: tuple[int, int]
) -> _AtWork:
    """What a pair does, found by rounds: how many decode follows from how long they take."""
    prefill, decode = pair
    one, between = arrays.take(np.array([decode])), float(sides.between[prefill])
    idle = _first(sides, prefill, decode) - float(sides.step[decode])
    use, rate, step = 0.0, task.rate or 0.0, float(sides.step[decode])
    for _ in range(ROUNDS):
        if task.users is not None:
            rest = idle + step + _further(task, step)
            use = _use_by_users(task.users / counts[0], rest, between)
            rate = task.users / (rest + _wait(between, use))
        use = min(rate * between / counts[0], MOST_USE)
        answering = task.completion * step / task.yielded
        running = np.array([max(rate * answering / counts[1], 1.0)])
        now = float(decode_seconds(one.hosted, one.rates, one.lengths, running)[0])
        step = 0.5 * (step + now)
    first = idle + step + _wait(between, use)
    return _AtWork(first_seconds=first, step_seconds=step, use=use, rate=rate)


def _option(
    pair: tuple[ServingQuestion, ServingQuestion],
    counts: tuple[int, int],
    at_work: _AtWork,
    way_seconds: float,
    task: SplitTask,
    calibration: Calibration,
) -> SplitOption:
    prefill, decode = pair
    pools = [
        SplitPool(
            gpu=one.device.name,
            tp=one.tp,
            weights=one.weights,
            replicas=count,
            usd_per_hour=None if price is None else price * count * one.tp,
        )
        for one, count in zip((prefill, decode), counts, strict=True)
        for price in [catalogue.typical_usd_per_device_hour(one.device.name)]
    ]
    costs = [one.usd_per_hour for one in pools]
    hourly = None if None in costs else sum(cost for cost in costs if cost is not None)
    tokens = at_work.rate * task.completion
    waiting = at_work.rate * at_work.first_seconds / counts[0]  # Little's law, of one worker
    late = factor_of(calibration.sigma_of("first_token", prefill.place, waiting))
    slow = factor_of(calibration.sigma_of("next_token", decode.place))
    return SplitOption(
        prefill=pools[0],
        decode=pools[1],
        num_gpus=sum(one.replicas * one.tp for one in pools),
        ttft_seconds=ranged(at_work.first_seconds, late),
        tpot_seconds=ranged(at_work.step_seconds / task.yielded, slow),
        transfer_seconds=way_seconds,
        transfer_bytes_per_second=task.link_bytes_per_second,
        prefill_use=at_work.use,
        requests_per_second=at_work.rate,
        usd_per_hour=hourly,
        usd_per_million_output_tokens=None if hourly is None else hourly / 3600.0 / tokens * 1e6,
    )
