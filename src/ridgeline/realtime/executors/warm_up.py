"""Sensors put off while frames of the warm-up keep stages busy.

The first call of a stage may compile for seconds. Sensors that went on at their rates meanwhile
would leave a heap of frames behind it, and the first that count would be late for what the warm-up
is there to hide. So the next frame waits until nothing runs, and all sensors' times move by as
much: the first frame that counts meets an idle pipeline, on its grid.
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.realtime.executors.sensors import RunClock, SensorReader

_HELD_UP_PERIODS = 0.5
"""Stages that were busy for so long when a frame is due hold it up; else they run beside it, as
those of another sensor's frame of the same instant do."""


class WarmUpHold:
    """Whether a frame has to wait for those of the warm-up.

    Not safe between threads; one that is called between two frames that count costs a comparison.

    Args:
        readers: All sensors of the run; of the first the warm-up's frames are counted.
        warmup: How many frames it has.
    """

    def __init__(self, clock: RunClock, readers: Sequence[SensorReader], warmup: int) -> None:
        self._clock = clock
        self._readers = readers
        self._warmup = warmup
        self._busy_since: float | None = None

    @property
    def is_on(self) -> bool:
        """Whether all frames that were read so far belong to the warm-up."""
        return self._readers[0].index <= self._warmup > 0

    def busy(self) -> None:
        """Note that stages run from now on, if none did."""
        if self._busy_since is None:
            self._busy_since = self._clock.now()

    def idle(self) -> None:
        """Note that nothing runs any more."""
        self._busy_since = None

    def holds(self, reader: SensorReader) -> bool:
        """Whether a sensor's next frame waits until nothing runs."""
        if self._busy_since is None or not self.is_on:
            return False
        since, rate_hz = self._busy_since, reader.shape.rate_hz
        return rate_hz is None or (reader.due - since) * rate_hz > _HELD_UP_PERIODS

    def put_off(self) -> float:
        """Move all sensors by what the next frame of any was held up; the seconds."""
        dues = [one.due for one in self._readers if one.shape.rate_hz and not one.ended]
        held_up = max(0.0, self._clock.now() - min(dues)) if dues else 0.0
        self._clock.pause(held_up)
        return held_up
