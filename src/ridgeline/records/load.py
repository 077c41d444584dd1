"""Which requests come, and when; what `loadtest` sends and `simulate serving` simulates."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import msgspec

from ridgeline.errors import InputError
from ridgeline.records.load_test import Slo
from ridgeline.records.request_trace import Traced, fitted, read_trace

Arrivals = Literal["closed", "constant", "poisson", "gamma", "ramp", "trace"]


class Load(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Field for field flags of both commands. The flags' defaults are these fields' defaults."""

    arrivals: Arrivals = "poisson"
    rate: float = 1.0
    """Requests per second; of a ramp, at its begin; of a sweep, of its first stage."""
    to_rate: float | None = None
    """The rate at the end of a ramp."""
    variation: float = 2.0
    """Standard deviation of the gaps between gamma arrivals over their mean."""
    concurrency: int = 8
    """Requests at one time in a closed loop."""
    seconds: float | None = None
    """How long requests are sent; in a sweep, in each stage. None: 30, or to the end of the trace
    or `requests`."""
    requests: int | None = None
    """At most so many; a trace is cut to them."""
    input_tokens: int = 256
    output_tokens: int = 64
    trace: Path | None = None
    trace_speed: float = 1.0
    length_scale: float = 1.0
    """Factor on the lengths of a trace, for a model whose context is shorter."""
    warmup_seconds: float | None = None
    """How long the warm-up takes; None: a tenth of the time of sending, at most 30."""
    slo: Slo = Slo()
    seed: int | None = None
    """Seed of prompts and arrivals; None: another in every run, so that no prefix cache is warm."""

    @property
    def sending_seconds(self) -> float:
        """The end of sending, where nothing ends it before."""
        if self.seconds is not None:
            return self.seconds
        return math.inf if self.trace is not None or self.requests is not None else 30.0

    def warmup(self, sent_seconds: float) -> float:
        """Seconds that are cut at the begin of a run that sent for `sent_seconds`."""
        if self.warmup_seconds is not None:
            return min(self.warmup_seconds, sent_seconds)
        return min(30.0, sent_seconds / 10)


def trace_of(load: Load) -> list[Traced]:
    """The trace to replay, scaled; empty where there is none."""
    if load.trace is None:
        return []
    return fitted(
        read_trace(load.trace),
        speed=load.trace_speed,
        length_scale=load.length_scale,
        most=load.requests,
    )


def check_load(load: Load) -> None:
    """Refuse what cannot be, naming the flag."""
    require_positive(
        {
            "--rate": load.rate,
            "--to-rate": load.to_rate,
            "--cv": load.variation,
            "--concurrency": load.concurrency,
            "--seconds": load.seconds,
            "--requests": load.requests,
            "--input-tokens": load.input_tokens,
            "--output-tokens": load.output_tokens,
            "--trace-speed": load.trace_speed,
            "--length-scale": load.length_scale,
            "--slo-ttft": load.slo.ttft_seconds,
            "--slo-itl": load.slo.itl_seconds,
            "--slo-tpot": load.slo.tpot_seconds,
            "--slo-e2e": load.slo.e2e_seconds,
        }
    )
    warmup = load.warmup_seconds
    if warmup is not None and not 0 <= warmup < load.sending_seconds:
        raise InputError(f"--warmup {warmup}: has to be shorter than the time of sending")
    if load.arrivals == "ramp" and load.to_rate is None:
        raise InputError("--arrivals ramp: say where it ends with --to-rate")
    if load.arrivals == "ramp" and math.isinf(load.sending_seconds):
        raise InputError("--arrivals ramp: say how long it takes with --seconds")
    if load.arrivals != "ramp" and load.to_rate is not None:
        raise InputError("--to-rate belongs to --arrivals ramp")
    if (load.arrivals == "trace") != (load.trace is not None):
        raise InputError("--trace FILE and --arrivals trace go together")


def require_positive(values: dict[str, float | None]) -> None:
    """Raise `InputError` for the first flag whose value is no number above 0."""
    for flag, value in values.items():
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise InputError(f"{flag} {value}: has to be a number above 0")
