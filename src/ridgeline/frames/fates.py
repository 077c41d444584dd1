"""What becomes of frames: the copies of each that are on their way, and why the last one ended.

A frame that goes two ways is one frame: it is lost for a sink when no copy of it is left that could
come out there, and then the cause is that of the copy that the sink needed, not of the partner that
waited for it in vain.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ridgeline.frames.jobs import SensorStamp
from ridgeline.quantity import seconds as seconds_text
from ridgeline.records.realtime_run import FateKind, FrameFates


class Loss(msgspec.Struct, frozen=True):
    """Where and why a copy of a frame ended."""

    rank: int
    """The lowest of a frame's losses is its cause: 0 where the sink needs what was lost, 1 where it
    does without, 2 for a partner that waited in vain."""
    kind: FateKind
    place: str
    reason: str
    at_seconds: float


class Delay(msgspec.Struct, frozen=True):
    """The place where a frame lost most time."""

    place: str
    seconds: float
    verb: Literal["came", "waited", "took"]
    """A sensor's frame came so long after its stamp; it lay on an edge; a stage ran."""

    @property
    def reason(self) -> str:
        """The delay in words."""
        late = " late" if self.verb == "came" else ""
        return f"{self.verb} {seconds_text(self.seconds)}{late}"


FrameEnd = tuple[FateKind, float | None, Delay | Loss | None]
"""A fate, when it came about, and its cause; without a cause: delivered in time, or unfinished."""
_UNFINISHED: FrameEnd = ("unfinished", None, None)


class FrameEntry:
    """One frame of a sensor: its copies on their way and its fate, per sink of the pipeline."""

    __slots__ = ("alive", "arrived", "ends", "frame", "losses", "open", "stamp", "stamps")

    def __init__(
        self, sensor: str, frame: int, stamp: float, arrived: float, num_sinks: int
    ) -> None:
        self.frame = frame
        self.stamp = stamp
        self.arrived = arrived
        self.alive = [0] * num_sinks
        self.losses: dict[int, Loss] = {}
        """Sink → the cause so far, should no copy come through."""
        self.ends: dict[int, FrameEnd] = {}
        self.open = 0
        """Sinks at which its fate is not known."""
        self.stamps = {sensor: SensorStamp(frame, stamp)}
        """What a call is told that depends on this frame alone."""


class FateBook:
    """The fates of all frames of one sensor.

    Args:
        sensor: Its name.
        sinks: Numbers of the sinks that it reaches, and their names.
    """

    def __init__(self, sensor: str, sinks: dict[int, str], num_sinks: int) -> None:
        self.sensor = sensor
        self.sinks = sinks
        self.entries: list[FrameEntry] = []
        self.open = 0
        """Frames whose fate is not known at one sink or more."""
        self._num_sinks = num_sinks

    def enter(self, frame: int, stamp: float, now: float) -> FrameEntry:
        """A frame that came."""
        entry = FrameEntry(self.sensor, frame, stamp, now, self._num_sinks)
        entry.open = len(self.sinks)
        self.entries.append(entry)
        self.open += 1
        return entry

    def deliver(self, entry: FrameEntry, sink: int, now: float, late: Delay | None) -> None:
        """A result came out of a sink; of two with the same frame the first counts."""
        if sink not in entry.ends:
            self._end(entry, sink, ("late" if late else "delivered", now, late))

    def lose(self, entry: FrameEntry, sink: int, loss: Loss) -> None:
        """A copy that could have come out of the sink has ended."""
        entry.alive[sink] -= 1
        if sink in entry.ends:
            return
        known = entry.losses.get(sink)
        if known is None or loss.rank < known.rank:
            entry.losses[sink] = known = loss
        if not entry.alive[sink]:
            self._end(entry, sink, (known.kind, known.at_seconds, known))

    def refuse(self, entry: FrameEntry, loss: Loss) -> None:
        """Nothing runs on the frame."""
        for sink in self.sinks:
            self._end(entry, sink, (loss.kind, loss.at_seconds, loss))

    def _end(self, entry: FrameEntry, sink: int, end: FrameEnd) -> None:
        entry.ends[sink] = end
        entry.losses.pop(sink, None)
        entry.open -= 1
        if not entry.open:
            self.open -= 1

    def columns(self) -> list[FrameFates]:
        """The fates so far, one table per sink."""
        return [self._column(sink, name) for sink, name in self.sinks.items()]

    def _column(self, sink: int, name: str) -> FrameFates:
        ends = [entry.ends.get(sink, _UNFINISHED) for entry in self.entries]
        return FrameFates(
            sensor=self.sensor,
            sink=name,
            frames=[entry.frame for entry in self.entries],
            stamps=[entry.stamp for entry in self.entries],
            arrived=[entry.arrived for entry in self.entries],
            ended=[at for _, at, _ in ends],
            kinds=[kind for kind, _, _ in ends],
            places=[cause.place if cause else "" for _, _, cause in ends],
            reasons=[cause.reason if cause else "" for _, _, cause in ends],
        )
