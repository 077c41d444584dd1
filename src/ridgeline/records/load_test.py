"""What a load test saw: the JSON contract of `ridgeline loadtest`, and most of a simulation's."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ridgeline.records.finite import Computed


class Percentiles(Computed, frozen=True, kw_only=True):
    """How one quantity spread, in the unit that its owner's name states."""

    count: int
    """Requests or tokens that it was taken over."""
    mean: float
    p50: float
    p75: float
    p90: float
    p95: float
    p99: float
    p999: float = msgspec.field(name="p99.9")
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles | None:
        """Summarise `values`; None where there are none.

        >>> Percentiles.of([1.0, 2.0, 3.0]).p50
        2.0
        """
        if not len(values):
            return None
        import numpy as np  # commands must start at once

        array = np.asarray(values, dtype=np.float64)
        p50, p75, p90, p95, p99, p999 = np.percentile(array, (50, 75, 90, 95, 99, 99.9)).tolist()
        return cls(
            count=len(array),
            mean=float(array.mean()),
            p50=p50,
            p75=p75,
            p90=p90,
            p95=p95,
            p99=p99,
            p999=p999,
            max=float(array.max()),
        )


class Requests(Computed, frozen=True, kw_only=True):
    """Requests of the whole run, its warm-up and its drain included."""

    sent: int
    ok: int
    failed: int
    cancelled: int = 0
    """In flight when the run was interrupted: neither ok nor failed."""
    failures: dict[str, int] = msgspec.field(default_factory=dict)
    """What went wrong → how often."""
    in_window: int = 0
    """Planned in the window and answered: those that the latencies are of."""


class Slo(Computed, frozen=True, kw_only=True):
    """What a request has to meet to count as good; None: no such demand."""

    ttft_seconds: float | None = None
    itl_seconds: float | None = None
    """For 99 % of the request's own tokens."""
    tpot_seconds: float | None = None
    e2e_seconds: float | None = None


class ClientCheck(Computed, frozen=True, kw_only=True):
    """Whether the load tester itself kept up."""

    send_lag_p50: float
    """Median seconds by which a request was sent late."""
    send_lag_p99: float
    send_lag_max: float
    timer_lag_p99: float
    """Seconds that timers of its event loop came late: chunks may be stamped that late."""
    cpu_share: float
    """Share of one core that the client used."""
    max_send_lag_seconds: float
    """The p99 above which no figures are given."""


class Lengths(Computed, frozen=True, kw_only=True):
    """Tokens by the server's count, means over the window's requests; None: it sent none."""

    input_tokens: float | None
    output_tokens: float | None
    cached_share: float | None
    """Share of the input found in the server's prefix cache, as far as it says so."""


class TimelinePoint(Computed, frozen=True, kw_only=True):
    """One slice of the run."""

    at_seconds: float
    """When the interval begins."""
    seconds: float
    sent_per_second: float
    finished_per_second: float
    failed_per_second: float
    output_tokens_per_second: float | None
    in_flight: float
    """Mean number of requests in flight."""
    ttft_p50_seconds: float | None
    """Median time to the first token of the requests planned in it."""
    ttft_p99_seconds: float | None


class CurvePoint(Computed, frozen=True, kw_only=True):
    """One stage of a sweep."""

    offered_per_second: float
    """Requests offered per second."""
    finished_per_second: float
    output_tokens_per_second: float | None
    goodput: float
    in_flight: float
    """Mean over the window."""
    saturated: bool
    why: str = ""
    """What showed that it is saturated."""
    ttft_p50_seconds: float | None
    ttft_p99_seconds: float | None
    tpot_p50_seconds: float | None
    tpot_p99_seconds: float | None
    e2e_p50_seconds: float | None
    e2e_p99_seconds: float | None
    client: ClientCheck


class Figures(Computed, frozen=True, kw_only=True):
    """What a run comes to, sent to a server or simulated."""

    window_seconds: tuple[float, float]
    """Begin and end of what was measured, from the start of the run."""
    requests: Requests
    lengths: Lengths
    ttft_seconds: Percentiles | None
    ttft_from_sent_seconds: Percentiles | None
    tpot_seconds: Percentiles | None
    itl_seconds: Percentiles | None
    stall_seconds: Percentiles | None
    e2e_seconds: Percentiles | None
    requests_per_second: float
    """Finished in the window."""
    output_tokens_per_second: float | None
    total_tokens_per_second: float | None
    """Output, and the input of the requests whose first token came in the window."""
    goodput: float
    """Requests per second that met the objectives."""
    goodput_share: float
    """Share of the requests planned in the window, failed ones included."""
    in_flight: float
    """Requests under way, mean over the window."""


class LoadTest(Figures, frozen=True, kw_only=True, tag_field="record", tag="load-test"):
    """One load test; of a sweep, its highest stage that was not saturated."""

    url: str
    model: str
    arrivals: str
    """How requests came, in words."""
    seed: int
    """Seed of prompts and arrivals."""
    interrupted: bool
    slo: Slo
    client: ClientCheck
    request_seconds: tuple[float, ...] = ()
    """Seconds of each request in `e2e_seconds`, as they were planned; empty in a simulation."""
    timeline: tuple[TimelinePoint, ...]
    curve: tuple[CurvePoint, ...] = ()
    """The points of a sweep, by offered rate."""
    max_rate: float | None = None
    """Requests per second that a sweep sustained."""
    notes: tuple[str, ...] = ()
    definitions: dict[str, str]
