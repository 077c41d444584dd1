"""Where the time of requests goes, and how much faster they could be without each phase at most.

    tokenise     the front makes tokens of texts
    queue        arrival at the engine until its first step
    prefill      until the first token
    decode       until the last, what detokenising took left out
    detokenise   the engine makes text of tokens, between its steps

The bound is Amdahl's (`cost/amdahl.py`): what the sum of all phases could shrink by if one of them
took no time. Phases of different requests run side by side, so that the sums are of requests, not
of a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ridgeline.cost.amdahl import speedup_without
from ridgeline.serve.messages import Times

_LABELS = ("model_name", "phase")


class RequestPhases:
    """Seconds of one model's requests by phase."""

    def __init__(self, tokenise_seconds: Callable[[], float]) -> None:
        self._tokenise_seconds = tokenise_seconds
        self._seconds = dict.fromkeys(("queue", "prefill", "decode", "detokenise"), 0.0)

    def note(self, times: Times) -> None:
        """Add a completion that has ended; one that never began counts nothing."""
        if times.scheduled is None:
            return
        self._add("queue", times.scheduled - times.arrived)
        if times.first_token is None:
            return
        self._add("prefill", times.first_token - times.scheduled)
        self._add("detokenise", times.detokenise)
        if times.finished is not None:
            self._add("decode", times.finished - times.first_token - times.detokenise)

    def families(self, model: str) -> Iterable[Metric]:
        """The seconds of each phase, and the bound of each."""
        seconds = {"tokenise": self._tokenise_seconds(), **self._seconds}
        spent = CounterMetricFamily(
            "ridgeline_phase_seconds", "Time of requests by phase.", labels=_LABELS
        )
        bounds = GaugeMetricFamily(
            "ridgeline_phase_speedup_bound",
            "How many times faster requests would be without the phase, by Amdahl's law.",
            labels=_LABELS,
        )
        whole = sum(seconds.values())
        for phase, taken in seconds.items():
            spent.add_metric([model, phase], taken)
            if whole > 0.0:
                bounds.add_metric([model, phase], speedup_without(taken, whole))
        yield spent
        yield bounds

    def _add(self, phase: str, seconds: float) -> None:
        self._seconds[phase] += max(0.0, seconds)
