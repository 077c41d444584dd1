"""What a simulated fleet did: the JSON contract of `ridgeline simulate serving`."""

from __future__ import annotations

from ridgeline.records.finite import Computed
from ridgeline.records.load_test import Figures, LoadTest

Range = tuple[float, float]
"""Low and high end."""


class LatencyInterval(Computed, frozen=True, kw_only=True):
    """Where 80 of 100 such fleets would lie, in seconds."""

    mean: Range
    p50: Range
    p90: Range
    p99: Range


class Interval(Computed, frozen=True, kw_only=True):
    """80 % prediction interval; None where there is no figure.

    The fleet is simulated with a slower and with a faster engine as well, by as much as the step
    times are unsure; what lies between is the interval, never narrower than what the published
    first tokens scattered.
    """

    ttft_seconds: LatencyInterval | None
    tpot_seconds: LatencyInterval | None
    itl_seconds: LatencyInterval | None
    e2e_seconds: LatencyInterval | None
    output_tokens_per_second: Range | None
    goodput: Range


class FleetUse(Computed, frozen=True, kw_only=True):
    """What the fleet was."""

    replica_seconds: float
    """From the begin of a replica's start to its end, summed."""
    most_replicas: int
    """The most replicas at one time."""
    replicas: tuple[tuple[float, int], ...]
    """Seconds since the start, and how many replicas there were from then on."""
    steps: int
    """Steps of all engines."""
    preemptions: int
    """Preemptions of all requests."""


class Alternative(Computed, frozen=True, kw_only=True):
    """The same load on another deployment."""

    change: str
    """The change as it was asked for: key=value, …"""
    figures: Figures
    fleet: FleetUse
    assumed: tuple[str, ...] = ()
    """What is assumed of this fleet's devices, engine and cache."""


class Simulated(LoadTest, frozen=True, kw_only=True, tag_field="record", tag="simulation"):
    """A load test that did not take place. Its client lagged nowhere and used no processor."""

    interval: Interval | None
    """The interval; None where it was not asked for."""
    fleet: FleetUse
    simulated_seconds: float
    """Until the last answer."""
    quantiles: dict[str, tuple[float, ...]]
    """Latency in seconds by hundredths of the requests: its least, …, its median, …, its most."""
    deployment: dict[str, object]
    """The deployment as simulated, what was left to us included."""
    what_if: tuple[Alternative, ...] = ()
    assumed: tuple[str, ...] = ()
    """What is assumed of devices, engine and cache: neither measured nor given."""
