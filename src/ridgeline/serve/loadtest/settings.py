"""What a load test is asked to do; field for field the flags of `ridgeline loadtest`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import msgspec

from ridgeline.errors import InputError
from ridgeline.records.load_test import Slo

Arrivals = Literal["closed", "constant", "poisson", "gamma", "ramp", "trace"]


class LoadSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Frozen. The flags' defaults are these fields' defaults."""

    url: str
    model: str | None = None
    """None: the first that the server names."""
    api: Literal["completions", "chat"] = "completions"
    api_key: str | None = None
    arrivals: Arrivals = "poisson"
    rate: float = 1.0
    """Requests per second; of a ramp, at its begin; of a sweep, of its first stage."""
    to_rate: float | None = None
    """Of a ramp, at its end."""
    variation: float = 2.0
    """Of gamma arrivals: standard deviation of the gaps over their mean."""
    concurrency: int = 8
    """Of a closed loop."""
    seconds: float | None = None
    """Of sending; of a sweep, of each stage. None: 30, or to the end of the trace or `requests`."""
    requests: int | None = None
    """At most so many; a trace is cut to them."""
    input_tokens: int = 256
    output_tokens: int = 64
    trace: Path | None = None
    trace_speed: float = 1.0
    length_scale: float = 1.0
    """Of a trace's lengths, for a model whose context is shorter."""
    sweep: bool = False
    warmup_seconds: float | None = None
    """None: a tenth of the time of sending, at most 30."""
    slo: Slo = Slo()
    seed: int | None = None
    """None: another in every run, so that no prefix cache is warm."""
    token_ids: tuple[int, int] | None = None
    """Prompts are ids from the first to below the second; None: words."""
    timeout_seconds: float = 600.0
    max_send_lag_seconds: float = 0.01
    max_cpu_share: float = 0.9

    @property
    def sending_seconds(self) -> float:
        """The end of sending, where nothing ends it before."""
        if self.seconds is not None:
            return self.seconds
        unbounded = not self.sweep and (self.trace is not None or self.requests is not None)
        return math.inf if unbounded else 30.0

    def warmup(self, sent_seconds: float) -> float:
        """Seconds that are cut at the begin of a run that sent for `sent_seconds`."""
        if self.warmup_seconds is not None:
            return min(self.warmup_seconds, sent_seconds)
        return min(30.0, sent_seconds / 10)


def check(settings: LoadSettings) -> None:
    """Refuse what cannot be run, naming the flag."""
    if not settings.url.startswith(("http://", "https://")):
        raise InputError(f"URL {settings.url}: give it with its scheme, as http://host:8000")
    above_zero = {
        "--rate": settings.rate,
        "--to-rate": settings.to_rate,
        "--cv": settings.variation,
        "--concurrency": settings.concurrency,
        "--seconds": settings.seconds,
        "--requests": settings.requests,
        "--input-tokens": settings.input_tokens,
        "--output-tokens": settings.output_tokens,
        "--trace-speed": settings.trace_speed,
        "--length-scale": settings.length_scale,
        "--timeout": settings.timeout_seconds,
        "--max-send-lag": settings.max_send_lag_seconds,
        "--max-cpu-share": settings.max_cpu_share,
        "--slo-ttft": settings.slo.ttft_seconds,
        "--slo-itl": settings.slo.itl_seconds,
        "--slo-tpot": settings.slo.tpot_seconds,
        "--slo-e2e": settings.slo.e2e_seconds,
    }
    for flag, value in above_zero.items():
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise InputError(f"{flag} {value}: has to be a number above 0")
    warmup = settings.warmup_seconds
    if warmup is not None and not 0 <= warmup < settings.sending_seconds:
        raise InputError(f"--warmup {warmup}: has to be shorter than the time of sending")
    _check_combination(settings)


def _check_combination(settings: LoadSettings) -> None:
    if settings.arrivals == "ramp" and settings.to_rate is None:
        raise InputError("--arrivals ramp: say where it ends with --to-rate")
    if settings.arrivals == "ramp" and math.isinf(settings.sending_seconds):
        raise InputError("--arrivals ramp: say how long it takes with --seconds")
    if settings.arrivals != "ramp" and settings.to_rate is not None:
        raise InputError("--to-rate belongs to --arrivals ramp")
    if (settings.arrivals == "trace") != (settings.trace is not None):
        raise InputError("--trace FILE and --arrivals trace go together")
    if settings.sweep and settings.arrivals not in ("poisson", "constant", "gamma"):
        raise InputError(f"--sweep sends at rates: --arrivals {settings.arrivals} has none")
    if settings.token_ids is not None:
        low, high = settings.token_ids
        if not 0 <= low < high:
            raise InputError(f"--token-ids {low}:{high}: the first has to be below the second")
        if settings.api == "chat":
            raise InputError("--token-ids: the chat API takes text only; use --api completions")
