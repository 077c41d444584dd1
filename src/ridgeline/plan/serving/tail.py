"""Replicas that keep percentiles: the plan of means, simulated until its tail fits.

A plan says what a replica carries on average; the percentile of a burst is another question, which
only the queue answers. So one replica is simulated under its share of the load, by the scheduler
that serves and the same times, and replicas are added until the 99th percentiles are within their
targets. Arrivals are Poisson, lengths those that were asked for, all alike; a router that evens the
load out does better than one replica alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ridgeline import quantity
from ridgeline.errors import InputError
from ridgeline.plan.serving.coefficients import Calibration
from ridgeline.plan.serving.engines import engine as engine_called
from ridgeline.plan.serving.estimate import estimate_serving
from ridgeline.plan.serving.published import ServedLoad
from ridgeline.plan.serving.question import ServingQuestion
from ridgeline.plan.simulate.deployment import Deployment
from ridgeline.plan.simulate.run import simulate_serving
from ridgeline.records.load import Load
from ridgeline.records.serving_plan import ServingTail

REQUESTS = 600
"""Requests of one simulation: six of them lie above the 99th percentile."""
MOST_TIMES = 64
"""Replicas over those of the plan of means, beyond which nothing is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailTarget:
    """The 99th percentiles that are allowed; None: any."""

    ttft_seconds: float | None
    itl_seconds: float | None

    @property
    def asked(self) -> bool:
        """Whether there is any target."""
        return self.ttft_seconds is not None or self.itl_seconds is not None

    def met_by(self, tail: ServingTail | None) -> bool:
        """Whether a replica's percentiles are within; None: it answered nothing."""
        return (
            tail is not None
            and tail.failed == 0
            and tail.ttft_p99_seconds <= (self.ttft_seconds or math.inf)
            and tail.itl_p99_seconds <= (self.itl_seconds or math.inf)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLoad:
    """The load of all replicas together: one of the two."""

    users: float | None
    rate: float | None
    calibration: Calibration

    def of(self, replicas: int, replica: ServingQuestion) -> Load:
        """What one of so many replicas sees: Poisson arrivals.

        Users who wait for their answers come as often as the replica answers them (Little's law).
        Simulated as so many loops they would march in step, since all lengths are alike.
        """
        rate = (self.rate or 0.0) / replicas
        if self.users is not None:
            at_once = ServedLoad(kind="closed", number=self.users / replicas)
            found = estimate_serving(replica, at_once, self.calibration)
            rate = found.requests_per_second.value
        return Load(
            arrivals="poisson",
            rate=rate,
            requests=REQUESTS,
            input_tokens=max(round(replica.prompt), 1),
            output_tokens=max(round(replica.completion), 1),
            seed=0,
        )


def within_tail(
    replica: ServingQuestion, load: SharedLoad, target: TailTarget, by_mean: int, most: int
) -> tuple[int, ServingTail]:
    """The fewest replicas, from those of the plan of means on, whose tail is within the target.

    Args:
        replica: One of them.
        load: What comes to all of them.
        target: The percentiles that are allowed.
        by_mean: How many the means ask for.
        most: More are not tried.

    Raises:
        InputError: Nothing that is tried is; the message says what was seen.
    """
    seen: dict[int, ServingTail | None] = {}

    def fits(replicas: int) -> bool:
        if replicas not in seen:
            seen[replicas] = simulated_tail(replica, load.of(replicas, replica))
        return target.met_by(seen[replicas])

    most = min(most, by_mean * MOST_TIMES)
    count = fewest(fits, by_mean, most) if fits(by_mean) or fits(most) else None
    tail = seen[count if count is not None else max(seen)]
    if count is None or tail is None:
        raise InputError(what_was_seen(max(seen), tail))
    return count, tail


def what_was_seen(replicas: int, tail: ServingTail | None) -> str:
    """The percentiles with so many replicas, or that requests went without an answer.

    >>> print(what_was_seen(8, ServingTail(
    ...     ttft_p99_seconds=0.2, itl_p99_seconds=0.03, requests=600, failed=0)))
    with 8 replicas the 99th percentile is 200 ms to the first token and 30.0 ms between tokens
    >>> what_was_seen(1, None)
    'with 1 replica no first token came: none of 600 simulated requests was answered'
    """
    given = f"with {replicas} replica{'s' * (replicas != 1)}"
    if tail is None:
        return f"{given} no first token came: none of {REQUESTS} simulated requests was answered"
    if tail.failed:
        return f"{given} {tail.failed} of {tail.requests} simulated requests got no answer"
    return (
        f"{given} the 99th percentile is {quantity.seconds(tail.ttft_p99_seconds)} to the first"
        f" token and {quantity.seconds(tail.itl_p99_seconds)} between tokens"
    )


def fewest(fits: Callable[[int], bool], least: int, most: int) -> int | None:
    """The smallest number from `least` to `most` that fits, if larger ones fit too; None: none.

    >>> fewest(lambda number: number >= 11, 2, 100), fewest(lambda number: False, 1, 4)
    (11, None)
    """
    low, high = least - 1, least
    while not fits(high):
        if high >= most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def simulated_tail(replica: ServingQuestion, load: Load) -> ServingTail | None:
    """The 99th percentiles of one replica under a load; None where no first token came."""
    engine = engine_called(replica.engine)
    deployment = Deployment(
        gpu=replica.device.name,
        tp=replica.tp,
        weights=replica.weights,
        cache=replica.cache,
        engine=replica.engine,
        max_tokens_per_step=round(replica.chunk or engine.chunk_on(replica.device)),
        kv_recent=None if replica.kept is None else replica.kept.recent,
        kv_first=0 if replica.kept is None else replica.kept.first,
        max_sequences=round(replica.most_sequences or engine.most_on(replica.device)),
        **({} if replica.drafting is None else replica.drafting.options),
    )
    found = simulate_serving(load, deployment, model=replica.model, interval=False)
    first, between = found.ttft_seconds, found.itl_seconds
    if first is None:
        return None
    return ServingTail(
        ttft_p99_seconds=first.p99,
        itl_p99_seconds=0.0 if between is None else between.p99,
        requests=found.requests.sent,
        failed=found.requests.sent - found.requests.ok,
    )
