"""What is taken of each kind of Ridgeline's own records that holds timed repetitions.

A reader takes what a comparison needs and leaves the rest: other fields may come and go between
versions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ridgeline.frames.outcomes import call_seconds, measured_calls, sink_ages
from ridgeline.records.realtime_run import RealtimeRun


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run was measured. Every field may be missing in a file from another version."""

    device: str = ""
    host_cpu: str = ""
    cpu_count: int = 0
    command: list[str] = []
    date: str = ""
    python: str = ""
    torch: str = ""
    ridgeline: str = ""
    variables: dict[str, str] = {}


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what is read of a document."""


class _Mean(_Part, frozen=True, kw_only=True):
    mean: float


class _Profile(_Part, frozen=True, kw_only=True):
    step_samples: list[float]
    kind: str = "training"
    phases: dict[str, _Mean] = {}
    peak_memory_bytes: int = 0
    environment: Origin = Origin()
    world_size: int = 1
    steady: bool = True


class _Doctor(_Part, frozen=True, kw_only=True):
    profile: _Profile


class _Tuning(_Part, frozen=True, kw_only=True):
    baseline: _Profile
    tuned: _Profile | None = None
    samples: dict[str, list[float]] = {}


class _Measured(_Part, frozen=True, kw_only=True):
    measured: float | None = None


class _TrainingRun(_Part, frozen=True, kw_only=True):
    step_samples: list[float]
    phases: dict[str, float] = {}
    peak_memory_bytes: _Measured = _Measured()
    environment: Origin = Origin()
    processes: int = 1


class _DecodeBench(_Part, frozen=True, kw_only=True):
    step_samples: list[float]
    device: str = ""
    model: str = ""


class _LoadTest(_Part, frozen=True, kw_only=True):
    request_seconds: list[float]
    ttft_seconds: _Mean | None = None
    e2e_seconds: _Mean | None = None
    model: str = ""
    arrivals: str = ""


class _Decoding(_Part, frozen=True, kw_only=True):
    step_seconds: list[float]


class _Latency(_Part, frozen=True, kw_only=True):
    round_seconds: list[float]


class _Row(_Part, frozen=True, kw_only=True):
    decoding: _Decoding | None = None
    latency: _Latency | None = None


class _Calls(_Part, frozen=True, kw_only=True):
    call_seconds: list[float] = []


class _ExportSpeed(_Part, frozen=True, kw_only=True):
    closed: _Calls
    peak_memory_bytes: int = 0


class _ExportRow(_Part, frozen=True, kw_only=True):
    format: str
    precision: str = ""
    speed: _ExportSpeed | None = None


class _Export(_Part, frozen=True, kw_only=True):
    rows: list[_ExportRow]
    environment: Origin = Origin()


class _Frames(_Part, frozen=True, kw_only=True):
    ages_seconds: list[float] = []
    stage_seconds: dict[str, float] = {}


class _FrameTuning(_Part, frozen=True, kw_only=True):
    baseline: _Frames
    tuned: _Frames | None = None
    environment: Origin = Origin()


class _FrameSimulation(_Part, frozen=True, kw_only=True):
    pipeline: str = ""
    ages_seconds: dict[str, list[float]] = {}


class _PlayedPolicy(_Part, frozen=True, kw_only=True):
    policy: str
    completion_seconds: list[float] = []


class _QueueSimulation(_Part, frozen=True, kw_only=True):
    policies: list[_PlayedPolicy]
    trace: str = ""
    gpus: int = 0


class _Compression(_Part, frozen=True, kw_only=True):
    rows: list[_Row]
    environment: Origin = Origin()


class _Evaluation(_Part, frozen=True, kw_only=True):
    decoding: _Decoding | None = None
    environment: Origin = Origin()


def _profile(document: _Profile, samples: list[float] | None = None) -> dict[str, Any]:
    return {
        "kind": document.kind,
        "samples": samples or document.step_samples,
        "phases": {name: phase.mean for name, phase in document.phases.items()},
        "peak_memory_bytes": document.peak_memory_bytes,
        "origin": document.environment,
        "world_size": document.world_size,
        "steady": document.steady,
    }


def _tuning(document: _Tuning) -> dict[str, Any]:
    """A ledger speaks for its tuned run."""
    return _profile(document.tuned or document.baseline, document.samples.get("tuned"))


def _training_run(document: _TrainingRun) -> dict[str, Any]:
    return {
        "kind": "training",
        "samples": document.step_samples,
        "phases": document.phases,
        "peak_memory_bytes": round(document.peak_memory_bytes.measured or 0),
        "origin": document.environment,
        "world_size": document.processes,
    }


def _decode_bench(document: _DecodeBench) -> dict[str, Any]:
    return {
        "kind": "decode",
        "unit": "decode step",
        "samples": document.step_samples,
        "origin": Origin(device=document.device, command=[document.model]),
    }


def _simulated_load(document: _LoadTest) -> dict[str, Any]:
    return _load_test(document) | {"kind": "simulated requests"}


def _load_test(document: _LoadTest) -> dict[str, Any]:
    first, whole = document.ttft_seconds, document.e2e_seconds
    phases = {}
    if first is not None and whole is not None:
        phases = {"first token": first.mean, "other tokens": whole.mean - first.mean}
    return {
        "kind": "requests",
        "unit": "request",
        "samples": document.request_seconds,
        "phases": phases,
        "origin": Origin(command=[document.model, document.arrivals]),
    }


def _compression(document: _Compression) -> dict[str, Any]:
    """The last row is the model that was made; its rounds are what was timed."""
    row = document.rows[-1] if document.rows else _Row()
    if row.latency is not None:
        return {
            "kind": "forward",
            "unit": "forward pass",
            "samples": row.latency.round_seconds,
            "origin": document.environment,
        }
    return _decoded(row.decoding, document.environment)


def _evaluation(document: _Evaluation) -> dict[str, Any]:
    return _decoded(document.decoding, document.environment)


def _decoded(decoding: _Decoding | None, origin: Origin) -> dict[str, Any]:
    return {
        "kind": "decode",
        "unit": "decode step",
        "samples": [] if decoding is None else decoding.step_seconds,
        "origin": origin,
    }


def _realtime_run(run: RealtimeRun) -> dict[str, Any]:
    """Ages of every sink's results, and what each stage takes on average."""
    calls = {one.stage: call_seconds(one, measured_calls(run, one)) for one in run.calls}
    origin = run.environment
    return {
        "kind": "simulated frames" if run.executor == "simulated" else "frames",
        "unit": "frame",
        **_by_part({sink: sink_ages(run, sink).tolist() for sink in run.shape.sinks}),
        "phases": {stage: float(times.mean()) for stage, times in calls.items() if times.size},
        "origin": Origin() if origin is None else msgspec.convert(
            origin, type=Origin, from_attributes=True
        ),
    }  # fmt: skip


def _frame_tuning(document: _FrameTuning) -> dict[str, Any]:
    """A ledger speaks for its tuned pipeline."""
    found = document.tuned or document.baseline
    return {
        "kind": "frames",
        "unit": "frame",
        "samples": found.ages_seconds,
        "phases": found.stage_seconds,
        "origin": document.environment,
    }


def _frame_simulation(document: _FrameSimulation) -> dict[str, Any]:
    return {
        "kind": "simulated frames",
        "unit": "frame",
        **_by_part(document.ages_seconds),
        "origin": Origin(command=[document.pipeline]),
    }


def _queue_simulation(document: _QueueSimulation) -> dict[str, Any]:
    """Completion of every job that takes any time, policy by policy."""
    return {
        "kind": "simulated jobs",
        "unit": "job",
        **_by_part(
            {
                one.policy: [seconds for seconds in one.completion_seconds if seconds > 0]
                for one in document.policies
            }
        ),
        "origin": Origin(command=[document.trace, f"{document.gpus} GPUs"]),
    }


def _export(document: _Export) -> dict[str, Any]:
    """Calls of every format that ran, the eager model's among them."""
    measured = [(row, row.speed) for row in document.rows if row.speed is not None]
    return {
        "kind": "exported",
        "unit": "call",
        **_by_part(
            {f"{row.format} {row.precision}": speed.closed.call_seconds for row, speed in measured}
        ),
        "peak_memory_bytes": max((speed.peak_memory_bytes for _, speed in measured), default=0),
        "origin": document.environment,
    }


def _by_part(parts: dict[str, list[float]]) -> dict[str, Any]:
    """The parts, and the times of the first that has any."""
    return {"samples": next((times for times in parts.values() if times), []), "parts": parts}


def _reader(
    kind: type[msgspec.Struct], take: Callable[[Any], dict[str, Any]]
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda content: take(msgspec.convert(content, type=kind))


READERS: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "doctor": ("doctor", _reader(_Doctor, lambda found: _profile(found.profile))),
    "profile": ("doctor", _reader(_Profile, _profile)),
    "tuning": ("tune", _reader(_Tuning, _tuning)),
    "training-run": ("train", _reader(_TrainingRun, _training_run)),
    "decode-bench": ("bench decode", _reader(_DecodeBench, _decode_bench)),
    "load-test": ("loadtest", _reader(_LoadTest, _load_test)),
    "compression": ("compress", _reader(_Compression, _compression)),
    "image-compression": ("compress", _reader(_Compression, _compression)),
    "evaluation": ("evaluate", _reader(_Evaluation, _evaluation)),
    "runtime-export": ("export", _reader(_Export, _export)),
    "realtime-run": ("realtime run", _reader(RealtimeRun, _realtime_run)),
    "realtime-tuning": ("realtime tune", _reader(_FrameTuning, _frame_tuning)),
    "realtime-simulation": ("realtime simulate", _reader(_FrameSimulation, _frame_simulation)),
    "queue-simulation": ("queue simulate", _reader(_QueueSimulation, _queue_simulation)),
    "simulation": ("simulate serving", _reader(_LoadTest, _simulated_load)),
}
"""Kind of record → the command that writes it, and what is taken of it."""
UNTIMED = {
    "training-estimate": "was computed, not measured; ridgeline explain says why one beats another",
    "training-plan": "was computed, not measured; ridgeline explain says why one beats another",
    "serving-estimate": "was computed, not measured; ridgeline plan serving ranks them",
    "serving-plan": "was computed, not measured; it ranks its own options",
    "image-evaluation": "holds answers and no times; ridgeline compress times every row",
    "realtime-report": "holds figures only; compare the runs that it was made of",
}
"""Kind of record without timed repetitions → why, and what to do."""
