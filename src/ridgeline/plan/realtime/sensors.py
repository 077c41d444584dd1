"""A sensor on a simulated clock: when its next frame is due, with which stamp, which identity."""

from __future__ import annotations

import math

import numpy as np

from ridgeline.plan.realtime.timing import PipelineTiming, Slots
from ridgeline.records.pipeline_shape import SensorShape


def sensor_slots(drawn: Slots, measured_ratio: float, ratio: float) -> Slots:
    """The measured slot behind each simulated slot of a sensor beside the first one.

    Args:
        drawn: The same for the first sensor.
        measured_ratio: Slots of this sensor per slot of the first one, as measured.
        ratio: The same as simulated.

    >>> sensor_slots(np.array([0, 1, 2, 7]), 2.0, 2.0)
    array([ 0,  1,  2,  3,  4,  5, 14, 15, 16])
    """
    own = np.arange(int(len(drawn) * ratio) + 1)
    behind = np.minimum((own / ratio).astype(np.int64), len(drawn) - 1)
    into = own - np.ceil(behind * ratio).astype(np.int64)
    return (np.round(drawn[behind] * measured_ratio) + into).astype(np.int64)


class SimulatedSensor:
    """One sensor of a simulation.

    Args:
        timing: The pipeline.
        shape: Its name and its rate, as simulated.
        first: The pipeline's first sensor, which ends all.
        drawn: The measured slot behind each slot of the first sensor.
    """

    def __init__(
        self, timing: PipelineTiming, shape: SensorShape, first: SensorShape, drawn: Slots
    ) -> None:
        self.name = shape.name
        self.period = None if shape.rate_hz is None else 1.0 / shape.rate_hz
        own = timing.sensors[shape.name]
        self.source = drawn
        """The measured slot behind each slot."""
        if shape.rate_hz is not None and first.rate_hz is not None:
            ratio = shape.rate_hz / first.rate_hz
            measured = own.slots_per_first
            if ratio != 1.0 or measured != 1.0:
                self.source = sensor_slots(drawn, measured, ratio)
        places = np.searchsorted(own.slots, self.source % (int(own.slots[-1]) + 1))
        self._there = (own.slots[places] == self.source % (int(own.slots[-1]) + 1)).tolist()
        self._stamped = own.stamped[places].tolist()
        self._delay = own.delay[places].tolist()
        self._repeated = own.repeated[places].tolist()
        self._slots = len(self.source)
        self._next = 0
        self._skip_gaps()
        self.frame = 0
        """The identity of the next frame."""
        self._free = 0.0
        self._stamp = -math.inf
        self.stopped = False
        self.waiting = False
        """A frame is due and not read, or being read."""
        self._identify()

    @property
    def over(self) -> bool:
        """Whether it has sent its last frame."""
        return self._next >= self._slots

    @property
    def slot_seconds(self) -> float:
        """When the next frame is due by the rate alone."""
        return self._next * (self.period or 0.0)

    @property
    def due(self) -> float:
        """When the next frame can be read."""
        offset = self._stamped[self._next] + min(0.0, self._delay[self._next])
        return max(self._free, self.slot_seconds + float(offset))

    @property
    def delay(self) -> float:
        """Seconds that the next frame takes from there into the pipeline."""
        return max(0.0, float(self._delay[self._next]))

    @property
    def stamp(self) -> float:
        """When the next frame was taken."""
        if self.period is None:
            return self._stamp
        return self.slot_seconds + float(self._stamped[self._next])

    def stamp_now(self, now: float) -> None:
        """A frame without a rate is taken when it is asked for; no two at one instant."""
        self._stamp = max(now, math.nextafter(self._stamp, math.inf))

    def advance(self, now: float) -> None:
        """The frame came; the one after it is next."""
        self._free = now
        self._next += 1
        self._skip_gaps()
        self._identify()

    def _skip_gaps(self) -> None:
        while self._next < self._slots and not self._there[self._next]:
            self._next += 1

    def _identify(self) -> None:
        if not self.over and not self._repeated[self._next]:
            self.frame = self._next
