"""Which requests a run sends, and when: arrivals joined with lengths.

Arrivals are seconds from the start, of an open loop: nobody waits for a completion. Each function
is an endless or bounded stream of rising times; the caller cuts it by time or count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, repeat, takewhile
from random import Random

from ridgeline.records.load import Load
from ridgeline.records.request_trace import Traced


def constant(requests_per_second: float) -> Iterator[float]:
    """Arrivals that are evenly spaced.

    >>> times = constant(4.0)
    >>> next(times), next(times), next(times)
    (0.0, 0.25, 0.5)
    """
    count = 0
    while True:
        yield count / requests_per_second
        count += 1


def poisson(requests_per_second: float, rng: Random) -> Iterator[float]:
    """Arrivals of independent users, with exponential gaps."""
    return gamma(requests_per_second, 1.0, rng)


def gamma(requests_per_second: float, variation: float, rng: Random) -> Iterator[float]:
    """Gaps of a gamma distribution.

    Args:
        requests_per_second: in the mean.
        variation: standard deviation of a gap over its mean: 1 is Poisson, above it bursts. The
            shape ("burstiness" elsewhere) is 1 / variation².
        rng: where the gaps come from.
    """
    shape = 1 / variation**2
    scale = 1 / (requests_per_second * shape)
    now = 0.0
    while True:
        now += rng.gammavariate(shape, scale)
        yield now


def ramp(first_rate: float, last_rate: float, seconds: float, rng: Random) -> Iterator[float]:
    """Poisson whose rate goes in a straight line from `first_rate` to `last_rate`.

    Arrivals of rate 1 are bent through the inverse of Λ(t) = first · t + slope · t² / 2 (Lewis and
    Shedler 1979, section 1). Ends after `seconds`.
    """
    slope = (last_rate - first_rate) / seconds
    whole = (first_rate + last_rate) / 2 * seconds
    passed = 0.0
    while True:
        passed += rng.expovariate(1.0)
        if passed >= whole:
            return
        if slope == 0:
            yield passed / first_rate
        else:
            root = math.sqrt(max(0.0, first_rate**2 + 2 * slope * passed))
            yield (root - first_rate) / slope


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One request to send."""

    at_seconds: float | None
    """Seconds from the start; None: as soon as a place of the closed loop is free."""
    input_tokens: int
    output_tokens: int
    prefix_ids: tuple[int, ...] = ()


def planned(
    load: Load, trace: list[Traced], seed: int, rate: float | None = None
) -> Iterator[Planned]:
    """The requests of a run in order.

    Args:
        load: what is asked for.
        trace: what `trace_of` (`records/load.py`) read; empty: none is replayed.
        seed: of the arrivals.
        rate: of a stage of a sweep, instead of the load's own.
    """
    if load.arrivals == "trace":
        requests = iter(
            [
                Planned(
                    at_seconds=row.at_seconds,
                    input_tokens=row.input_tokens,
                    output_tokens=row.output_tokens,
                    prefix_ids=row.prefix_ids,
                )
                for row in trace
            ]
        )
    else:
        times = _times(load, Random(f"{seed}/arrivals"), rate or load.rate)
        requests = (
            Planned(
                at_seconds=at,
                input_tokens=load.input_tokens,
                output_tokens=load.output_tokens,
            )
            for at in times
        )
    limit = load.sending_seconds
    within = takewhile(lambda one: one.at_seconds is None or one.at_seconds < limit, requests)
    return islice(within, load.requests)


def _times(load: Load, rng: Random, rate: float) -> Iterator[float | None]:
    match load.arrivals:
        case "closed":
            return repeat(None)
        case "constant":
            return constant(rate)
        case "gamma":
            return gamma(rate, load.variation, rng)
        case "ramp":
            assert load.to_rate is not None, "`check` asks for it"
            return ramp(rate, load.to_rate, load.sending_seconds, rng)
        case _:
            return poisson(rate, rng)


def describe(load: Load, rate: float | None = None) -> str:
    """How requests come, in words."""
    at = f"{rate or load.rate:g} requests/s"
    lengths = f"{load.input_tokens} tokens in, {load.output_tokens} out"
    match load.arrivals:
        case "closed":
            return f"closed loop of {load.concurrency}, {lengths}"
        case "gamma":
            return f"gamma, {at}, gaps vary by {load.variation:g} of their mean, {lengths}"
        case "ramp":
            return f"Poisson, ramp from {at} to {load.to_rate:g}, {lengths}"
        case "trace":
            scale = "" if load.length_scale == 1 else f", lengths × {load.length_scale:g}"
            speed = "" if load.trace_speed == 1 else f" at {load.trace_speed:g} × its speed"
            name = load.trace.name if load.trace else ""
            return f"trace {name}{speed}{scale}"
        case _:
            return f"{load.arrivals.replace('poisson', 'Poisson')}, {at}, {lengths}"
