"""What a run of a real-time pipeline left: every call of every stage, the fate of every frame.

Columns, not rows: a run of 10,000 frames through ten stages is some megabytes. Times are seconds
since the run began, of `time.monotonic` (of the simulated clock, in a simulation).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ridgeline.records.measurement import Environment
from ridgeline.records.pipeline_shape import PipelineShape
from ridgeline.records.tagged import TaggedRecord

Executor = Literal["inline", "threads", "processes", "simulated"]

CallMode = Literal["run", "degrade", "hold", "skip"]
"""What the stage did with the frame; only `run` and `degrade` call code."""

FateKind = Literal["delivered", "late", "dropped", "failed", "unfinished"]
"""What became of a frame at a sink.

`late`: delivered past the deadline; `failed`: a stage raised, or its process died; `unfinished`:
in flight when the run ended."""


WaitState = Literal["runs", "sleeps", "lock", "disk", "waits"]
"""What a call was doing when somebody looked.

`runs`: on a core or in line for one; `sleeps`: asked the kernel for a pause; `lock`: waits for a
lock (a futex); `disk`: in a wait that nothing interrupts; `waits`: for anything else, as a socket
or a pipe."""


class StageCalls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All calls of one stage, in order; the lists have one length."""

    stage: str
    frames: list[int]
    """Identity of the leading sensor's frame."""
    ready: list[float]
    """When all inputs of the call lay at the stage."""
    started: list[float]
    ended: list[float]
    modes: list[CallMode]
    cpu_seconds: list[float] = []
    """CPU time of the calling thread; empty where it was not taken."""
    gpu_seconds: list[float] = []
    """Time between CUDA events around the call; empty off a GPU."""
    enqueue_seconds: list[float] = []
    """Time until the host was free again; empty off a GPU."""
    behind: dict[str, list[int]] = {}
    """Sensor → the oldest of its frames that the call's inputs were made of, through joins and
    reused inputs too: the age of data on a path. Empty where all is made of `frames` alone."""
    core_wait_seconds: list[float] = []
    """Time in which the calling thread could run and had no core; empty where nothing observed
    the run, as the columns below are."""
    wake_wait_seconds: list[float] = []
    """Time without a core since the thread's last call ended: how late it was woken."""
    collecting_seconds: list[float] = []
    """Garbage collections by the calling thread during the call."""
    page_faults: list[int] = []
    """Memory that the call touched for the first time, in pages."""
    major_faults: list[int] = []
    """Pages that had to come from a disk."""
    switches: list[int] = []
    """How often the calling thread let go of its core to wait."""
    cores: list[int] = []
    """The core on which the call ended."""
    slowdowns: list[float] = []
    """CPU time of a small fixed piece of work right after the call, on its core, over its median in
    the run; taken a few times a second, and that of the call before in between."""


class FrameFates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fates of one sensor's frames at one sink, in the order of the sensor; equal lengths."""

    sensor: str
    sink: str
    frames: list[int]
    stamps: list[float]
    arrived: list[float]
    """When the frame came into the pipeline; a sensor's own delay lies between stamp and this."""
    ended: list[float | None]
    """When its result came out of the sink, or it was dropped; null: unfinished."""
    kinds: list[FateKind]
    places: list[str]
    """Where a frame that was not delivered in time was lost, or lost most time: `a -> b` for an
    edge, a stage's name, or the sensor's; empty: delivered in time."""
    reasons: list[str]
    """Why that was lost: `oldest`, `full`, `no partner`, `superseded`, `standstill` (stages waited
    for each other), `too late`, `repeated id`, `stamp from the future`, `raised ValueError: …`,
    `its process died`, …; empty: delivered in time."""


class SensorFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was wrong with what a sensor sent."""

    sensor: str
    kind: Literal["gap", "repeated id", "future stamp", "stale stamp", "stopped", "late", "raised"]
    frame: int
    at_seconds: float
    detail: str = ""


class SteadyMeasure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One measure against jitter, and what the system said to it."""

    name: str
    """`affinity`, `fifo`, `gc`, `warm-up`, `memory lock`, `buffers`, `cuda graphs`, …"""
    granted: bool
    detail: str
    """What was set; where refused, by whom and how it can be allowed."""


class Collection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One garbage collection during a run."""

    started: float
    ended: float
    generation: int
    thread: str
    """The stage whose thread paid for it; `slack`: made on purpose between frames."""


class Interference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What else used the machine during one interval of a run, sampled beside it."""

    started: float
    ended: float
    process: str
    """Name and pid, as `python3 (4711)`."""
    cpu_seconds: float
    core: int | None = None
    """The core that it was last seen on."""
    kind: Literal["process", "hypervisor", "interrupts", "quota"] = "process"
    """What it was that ran instead. `hypervisor`: time that the host of this machine kept for
    itself; `quota`: time in which the run's control group had used up its share."""


class WaitSample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an unusually long call was doing, looked at from outside while it lasted."""

    at_seconds: float
    stage: str
    state: WaitState


class RealtimeRun(TaggedRecord, frozen=True, kw_only=True, tag="realtime-run"):
    """A run as written to `run.json`; `simulate`, `compare` and the page read it."""

    shape: PipelineShape
    executor: Executor
    environment: Environment | None = None
    """Null in a simulation."""
    seconds: float
    interrupted: bool = False
    """Ctrl-C ended it before its last frame."""
    warmup_frames: int = 0
    """Leading frames per sensor that statistics leave out; they are in the columns."""
    calls: list[StageCalls]
    fates: list[FrameFates]
    steady: list[SteadyMeasure] = []
    sensor_faults: list[SensorFault] = []
    collections: list[Collection] = []
    interference: list[Interference] = []
    waits: list[WaitSample] = []
    page_fault_seconds: float | None = None
    """What one page fault without a disk takes, measured as the run began; null: not observed."""
    tight_loop: dict[str, list[float]] = {}
    """Stage → seconds of calls made one after the other without waiting for the rate; empty where
    that was not measured."""
    notes: list[str] = []
    """What a reader must know: a process that was restarted, a measure that the system refused."""
