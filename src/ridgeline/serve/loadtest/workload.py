"""Which requests a run sends, and when: arrivals joined with lengths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, repeat, takewhile
from random import Random

from ridgeline.serve.loadtest import arrivals
from ridgeline.serve.loadtest.settings import LoadSettings
from ridgeline.serve.loadtest.trace import Traced, fitted, read_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One request to send."""

    at_seconds: float | None
    """From the start; None: as soon as a place of the closed loop is free."""
    input_tokens: int
    output_tokens: int
    prefix_ids: tuple[int, ...] = ()


def planned(
    settings: LoadSettings, trace: list[Traced], seed: int, rate: float | None = None
) -> Iterator[Planned]:
    """The requests of a run in order.

    Args:
        settings: what is asked for.
        trace: what `trace_of` read.
        seed: of the arrivals.
        rate: of a stage of a sweep, instead of the settings' own.
    """
    if settings.arrivals == "trace":
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
        times = _times(settings, Random(f"{seed}/arrivals"), rate or settings.rate)
        requests = (
            Planned(
                at_seconds=at,
                input_tokens=settings.input_tokens,
                output_tokens=settings.output_tokens,
            )
            for at in times
        )
    limit = settings.sending_seconds
    within = takewhile(lambda one: one.at_seconds is None or one.at_seconds < limit, requests)
    return islice(within, settings.requests)


def trace_of(settings: LoadSettings) -> list[Traced]:
    """The trace to replay, scaled; empty where there is none."""
    if settings.trace is None:
        return []
    return fitted(
        read_trace(settings.trace),
        speed=settings.trace_speed,
        length_scale=settings.length_scale,
        most=settings.requests,
    )


def _times(settings: LoadSettings, rng: Random, rate: float) -> Iterator[float | None]:
    match settings.arrivals:
        case "closed":
            return repeat(None)
        case "constant":
            return arrivals.constant(rate)
        case "gamma":
            return arrivals.gamma(rate, settings.variation, rng)
        case "ramp":
            assert settings.to_rate is not None, "`check` asks for it"
            return arrivals.ramp(rate, settings.to_rate, settings.sending_seconds, rng)
        case _:
            return arrivals.poisson(rate, rng)


def describe(settings: LoadSettings, rate: float | None = None) -> str:
    """How requests come, in words."""
    at = f"{rate or settings.rate:g} requests/s"
    lengths = f"{settings.input_tokens} tokens in, {settings.output_tokens} out"
    match settings.arrivals:
        case "closed":
            return f"closed loop of {settings.concurrency}, {lengths}"
        case "gamma":
            return f"gamma, {at}, gaps vary by {settings.variation:g} of their mean, {lengths}"
        case "ramp":
            return f"Poisson, ramp from {at} to {settings.to_rate:g}, {lengths}"
        case "trace":
            scale = "" if settings.length_scale == 1 else f", lengths × {settings.length_scale:g}"
            speed = "" if settings.trace_speed == 1 else f" at {settings.trace_speed:g} × its speed"
            name = settings.trace.name if settings.trace else ""
            return f"trace {name}{speed}{scale}"
        case _:
            return f"{settings.arrivals.replace('poisson', 'Poisson')}, {at}, {lengths}"
