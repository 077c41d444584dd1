"""The calls of one stage as columns, written down as they end."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from ridgeline.frames.jobs import FrameJob
from ridgeline.records.realtime_run import CallMode, StageCalls


class MeasuredTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver measured around a call, where it knows better than the flow's clock."""

    started: float | None = None
    """When the call itself began; None: when the job was taken."""
    ended: float | None = None
    """When the call itself ended; None: when the flow was told."""
    cpu_seconds: float | None = None
    gpu_seconds: float | None = None
    enqueue_seconds: float | None = None


NOT_MEASURED = MeasuredTimes()


@dataclass(slots=True)
class CallLog:
    """All calls of one stage."""

    stage: str
    frames: list[int] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    started: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    modes: list[CallMode] = field(default_factory=list)
    cpu: list[float | None] = field(default_factory=list)
    gpu: list[float | None] = field(default_factory=list)
    enqueue: list[float | None] = field(default_factory=list)
    behind: dict[str, list[int]] | None = None
    """Sensor → its oldest frame behind each call; null where the leading frame is alone."""

    def add(self, job: FrameJob, started: float, ended: float, times: MeasuredTimes) -> None:
        """Write down one call."""
        self.frames.append(job.frame)
        self.ready.append(job.ready)
        self.started.append(started)
        self.ended.append(ended)
        self.modes.append(job.mode)
        self.cpu.append(times.cpu_seconds)
        self.gpu.append(times.gpu_seconds)
        self.enqueue.append(times.enqueue_seconds)
        if self.behind is not None:
            for sensor, stamp in job.stamps.items():
                self.behind.setdefault(sensor, []).append(stamp.frame)

    def columns(self) -> StageCalls:
        """The calls so far."""
        return StageCalls(
            stage=self.stage,
            frames=list(self.frames),
            ready=list(self.ready),
            started=list(self.started),
            ended=list(self.ended),
            modes=list(self.modes),
            cpu_seconds=_measured(self.cpu),
            gpu_seconds=_measured(self.gpu),
            enqueue_seconds=_measured(self.enqueue),
            behind={sensor: list(frames) for sensor, frames in (self.behind or {}).items()},
        )


def _measured(column: list[float | None]) -> list[float]:
    """A column whose calls that ran nothing took no time; empty where no call was measured."""
    if all(value is None for value in column):
        return []
    return [value or 0.0 for value in column]
