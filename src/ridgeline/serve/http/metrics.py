"""The metrics of `/metrics`, under vLLM's names, so that its dashboards read us too.

Counters and gauges come from the engine's last heartbeat when they are asked for; histograms are
fed as requests go on. Intervals follow vLLM: queue is arrival to first schedule, prefill is that to
first token, decode is first to last token, all on the engine's clock; time to first token and
inter-token latency are seen by this process, as close to the client as we get. Inter-token latency
counts tokens: of several that come at once, all but the first took no time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ridgeline.cost.amdahl import speedup_without
from ridgeline.serve.cluster.combined import FleetReport
from ridgeline.serve.http.access_log import RequestRecord
from ridgeline.serve.messages import Delta, MemoryLedger, Stats, Submit, Times
from ridgeline.serve.process.client import EngineLink

_SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0,
)  # fmt: skip
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_COUNTS = (1, 2, 5, 10, 20)

_GAUGES: dict[str, tuple[str, Callable[[Stats], float]]] = {
    "num_requests_running": ("Sequences in the running batch.", lambda s: s.running),
    "num_requests_waiting": ("Sequences that wait.", lambda s: s.waiting),
    "kv_cache_usage_perc": ("Share of KV blocks in use, 0 to 1.", lambda s: s.cache_usage),
}
_COUNTERS: dict[str, tuple[str, Callable[[Stats], float]]] = {
    "prompt_tokens": ("Prompt tokens of admitted requests.", lambda s: s.prompt_tokens),
    "generation_tokens": ("Tokens generated.", lambda s: s.generation_tokens),
    "prefix_cache_queries": ("Prompt tokens looked up.", lambda s: s.prefix_queries),
    "prefix_cache_hits": ("Prompt tokens found in the prefix cache.", lambda s: s.prefix_hits),
    "num_preemptions": ("Preemptions.", lambda s: s.preemptions),
    "preempted_tokens": ("Tokens computed again after preemption.", lambda s: s.wasted_tokens),
    "spec_decode_num_drafts": ("Sequences' steps with guesses.", lambda s: s.draft_rounds),
    "spec_decode_num_draft_tokens": ("Tokens guessed ahead.", lambda s: s.drafted_tokens),
    "spec_decode_num_accepted_tokens": ("Guesses that held.", lambda s: s.accepted_tokens),
    "engine_steps": ("Steps of the engine.", lambda s: s.steps),
}


_OWN_COUNTERS: dict[str, tuple[str, Callable[[Stats], float]]] = {
    "ridgeline_step_seconds": ("Time of all steps.", lambda s: s.step_seconds),
    "ridgeline_collective_seconds": (
        "Time of steps in collectives between ranks, waiting included.",
        lambda s: s.collective_seconds,
    ),
    "ridgeline_collective_bytes": (
        "Bytes that the first rank put into collectives.",
        lambda s: s.collective_bytes,
    ),
    "ridgeline_kv_transfers": (
        "Requests whose keys and values came from another engine.",
        lambda s: s.kv_transfers,
    ),
    "ridgeline_kv_transfer_bytes": (
        "Bytes of keys and values that came from other engines.",
        lambda s: s.kv_transfer_bytes,
    ),
    "ridgeline_kv_transfer_seconds": (
        "Time that they were under way, summed over requests.",
        lambda s: s.kv_transfer_seconds,
    ),
}
"""Counters without a counterpart in vLLM, under names of their own."""


class Meters:
    """All metrics of one server, in a registry of its own."""

    def __init__(
        self,
        engine: EngineLink,
        model: str,
        fleet: Callable[[], FleetReport] | None = None,
        tokenise_seconds: Callable[[], float] = float,
    ) -> None:
        """Begin with nothing counted.

        Args:
            engine: Whose last heartbeat is read.
            model: The label of every metric.
            fleet: What an autoscaler says of its replicas; None: there is none.
            tokenise_seconds: What making tokens of texts has taken so far.
        """
        self._phases = RequestPhases(tokenise_seconds)
        self._engine = engine
        self._fleet = fleet
        self._model = model
        self._registry = CollectorRegistry()
        self._registry.register(self)  # type: ignore[arg-type]
        self._first = self._histogram("time_to_first_token_seconds", _SECONDS)
        self._between = self._histogram("inter_token_latency_seconds", _SECONDS)
        self._per_token = self._histogram("request_time_per_output_token_seconds", _SECONDS)
        self._whole = self._histogram("e2e_request_latency_seconds", _SECONDS)
        self._queue = self._histogram("request_queue_time_seconds", _SECONDS)
        self._prefill = self._histogram("request_prefill_time_seconds", _SECONDS)
        self._decode = self._histogram("request_decode_time_seconds", _SECONDS)
        self._inference = self._histogram("request_inference_time_seconds", _SECONDS)
        self._prompt = self._histogram("request_prompt_tokens", _TOKENS)
        self._output = self._histogram("request_generation_tokens", _TOKENS)
        self._completions = self._histogram("request_params_n", _COUNTS)
        self._longest = self._histogram("request_params_max_tokens", _TOKENS)
        self._success = Counter(
            "vllm:request_success",
            "Answers that ended, by reason.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )

    def families(self) -> Iterable[Metric]:
        """All metrics as they stand."""
        return self._registry.collect()

    def collect(self) -> Iterable[Metric]:
        """What the engine counts; called by the registry."""
        stats, ready = self._engine.stats, self._engine.ready
        labels = ["model_name"]
        if stats is not None:
            for name, (text, read) in _GAUGES.items():
                gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=labels)
                gauge.add_metric([self._model], read(stats))
                yield gauge
            counters = {f"vllm:{name}": one for name, one in _COUNTERS.items()} | _OWN_COUNTERS
            for name, (text, read) in counters.items():
                counter = CounterMetricFamily(name, text, labels=labels)
                counter.add_metric([self._model], read(stats))
                yield counter
            # Ours: what manifests of autoscalers ask for (`launch/kube/serving.py`).
            busy = GaugeMetricFamily(
                "ridgeline_open_requests", "Running or waiting.", labels=labels
            )
            busy.add_metric([self._model], stats.running + stats.waiting)
            yield busy
        if ready is not None:
            yield _cache_info(ready.ledger, self._model)
        yield from self._phases.families(self._model)
        if self._fleet is not None:
            yield from _of_fleet(self._fleet(), self._model)

    def note_submit(self, submit: Submit) -> None:
        """Count a prompt that goes to the engine."""
        self._completions.observe(submit.n)
        self._longest.observe(submit.sampling.max_tokens)

    def timer(self, record: RequestRecord) -> CompletionTimer:
        """A timer of one completion of a request."""
        return CompletionTimer(self, record.began)

    def note_finish(self, delta: Delta, began: float) -> None:
        """Count a completion that has ended."""
        self._success.labels(self._model, delta.finish_reason).inc()
        self._whole.observe(time.monotonic() - began)
        self._prompt.observe(delta.prompt_tokens)
        self._output.observe(delta.output_tokens)
        times = delta.times
        if times is None or times.scheduled is None:
            return
        self._phases.note(times)
        self._queue.observe(max(0.0, times.scheduled - times.arrived))
        if times.finished is not None:
            self._inference.observe(max(0.0, times.finished - times.scheduled))
        if times.first_token is None:
            return
        self._prefill.observe(max(0.0, times.first_token - times.scheduled))
        if times.finished is not None:
            decode = max(0.0, times.finished - times.first_token)
            self._decode.observe(decode)
            if delta.output_tokens > 1:
                self._per_token.observe(decode / (delta.output_tokens - 1))

    def note_first_token(self, seconds: float) -> None:
        """Observe the time from the request's first byte to its first token."""
        self._first.observe(seconds)

    def note_more_tokens(self, seconds: float, count: int) -> None:
        """`count` tokens came together, so long after the ones before."""
        self._between.observe(seconds)
        for _ in range(count - 1):
            self._between.observe(0.0)

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(
            f"vllm:{name}",
            name.replace("_", " "),
            ["model_name"],
            buckets=buckets,
            registry=self._registry,
        )
        return histogram.labels(self._model)


class CompletionTimer:
    """Times one completion's tokens as they pass."""

    def __init__(self, meters: Meters, began: float) -> None:
        self._meters = meters
        self._began = began
        self._last: float | None = None

    def note(self, delta: Delta) -> None:
        """Note that a delta has come."""
        if delta.tokens:
            now = time.monotonic()
            if self._last is None:
                self._meters.note_first_token(now - self._began)
            else:
                self._meters.note_more_tokens(now - self._last, len(delta.tokens))
            self._last = now
        if delta.finish_reason is not None:
            self._meters.note_finish(delta, self._began)


def metrics_text(meters: Sequence[Meters]) -> bytes:
    """The metrics of one model or of several in Prometheus's format, each family once."""
    return generate_latest(_Together(meters))  # type: ignore[arg-type]


class _Together:
    """Several registries as one, which the models' labels tell apart."""

    def __init__(self, meters: Sequence[Meters]) -> None:
        self._meters = meters

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for one in self._meters:
            for family in one.families():
                known = families.setdefault(family.name, family)
                if known is not family:
                    known.samples.extend(family.samples)
        return families.values()


def _of_fleet(fleet: FleetReport, model: str) -> Iterable[Metric]:
    states = ("desired", "ready", "starting", "draining")
    replicas = GaugeMetricFamily("ridgeline_replicas", "By state.", labels=["model_name", "state"])
    for state in states:
        replicas.add_metric([model, state], getattr(fleet, state))
    yield replicas
    spent = CounterMetricFamily(
        "ridgeline_replica_seconds", "Time that replicas existed.", labels=["model_name"]
    )
    spent.add_metric([model], fleet.replica_seconds)
    yield spent
    if fleet.startup_seconds is not None:
        startup = GaugeMetricFamily(
            "ridgeline_replica_startup_seconds", "Of the last start.", labels=["model_name"]
        )
        startup.add_metric([model], fleet.startup_seconds)
        yield startup


def _cache_info(ledger: MemoryLedger, model: str) -> Metric:
    labels = {"block_size": str(ledger.block_size), "num_gpu_blocks": str(ledger.num_blocks)}
    labels["model_name"] = model
    info = GaugeMetricFamily("vllm:cache_config_info", "The KV cache.", labels=list(labels))
    info.add_metric(list(labels.values()), 1)
    return info


_LABELS = ("model_name", "phase")


class RequestPhases:
    """Seconds of one model's requests by phase, and how much faster they could be without it.

        tokenise     the front makes tokens of texts
        queue        arrival at the engine until its first step
        prefill      until the first token
        decode       until the last, what detokenising took left out
        detokenise   the engine makes text of tokens, between its steps

    The bound is Amdahl's (`cost/amdahl.py`): what the sum of all phases could shrink by if one of
    them took no time. Phases of different requests run side by side, so that the sums are of
    requests, not of a clock.
    """

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
