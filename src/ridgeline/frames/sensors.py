"""What a sensor sends, checked: identities that rise, stamps that rise and are past."""

from __future__ import annotations

import math
from typing import Literal

from ridgeline.frames.edges import Edge
from ridgeline.frames.fates import FateBook
from ridgeline.quantity import seconds as seconds_text
from ridgeline.records.pipeline_shape import SensorShape
from ridgeline.records.realtime_run import SensorFault

_CLOCK_SECONDS = 1e-6
"""A stamp so little after its arrival is two clocks' rounding."""
_LATE_PERIODS = 1.5
"""A frame that comes so many periods after the one before it is late."""

FaultKind = Literal[
    "gap", "repeated id", "future stamp", "stale stamp", "stopped", "late", "raised"
]
_REASONS = {"future stamp": "stamp from the future", "repeated id": "repeated id",
            "stale stamp": "stamp not after the last"}  # fmt: skip


class SensorState:
    """What is known of a sensor between two of its frames."""

    def __init__(self, shape: SensorShape, book: FateBook, outs: list[Edge]) -> None:
        self.shape = shape
        self.book = book
        self.outs = outs
        self.stopped = False
        self.frame: int | None = None
        """The last frame that was not refused."""
        self.stamp = -math.inf
        self.arrived = -math.inf

    def told_apart(self, stamp: float) -> float:
        """The stamp; moved by the smallest step where it is that of the frame before.

        A sensor without a rate can send two frames at one instant of a simulated clock.
        """
        if self.shape.rate_hz is None and stamp <= self.stamp < stamp + _CLOCK_SECONDS:
            return math.nextafter(self.stamp, math.inf)
        return stamp

    def fault(self, frame: int, stamp: float, now: float) -> SensorFault | None:
        """What is wrong with a frame that comes now."""
        if self.frame is not None and frame <= self.frame:
            return self.note("repeated id", frame, now, f"{frame} after {self.frame}")
        if stamp > now + _CLOCK_SECONDS:
            ahead = seconds_text(stamp - now)
            return self.note("future stamp", frame, now, f"{ahead} after its arrival")
        if stamp <= self.stamp:
            behind = seconds_text(self.stamp - stamp)
            return self.note("stale stamp", frame, now, f"{behind} before that of {self.frame}")
        if self.frame is not None and frame > self.frame + 1:
            missing = frame - self.frame - 1
            return self.note("gap", frame, now, f"{missing} missing after {self.frame}")
        if self.shape.rate_hz and (now - self.arrived) * self.shape.rate_hz > _LATE_PERIODS:
            since = seconds_text(now - self.arrived)
            if math.isfinite(self.arrived):
                return self.note("late", frame, now, f"{since} after the one before")
        return None

    def note(self, kind: FaultKind, frame: int, now: float, detail: str) -> SensorFault:
        """A fault of this sensor."""
        return SensorFault(
            sensor=self.shape.name, kind=kind, frame=frame, at_seconds=now, detail=detail
        )


def refusal(fault: SensorFault | None) -> str:
    """Why nothing runs on a frame with this fault; empty: it runs."""
    return _REASONS.get(fault.kind, "") if fault else ""
