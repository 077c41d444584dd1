"""Reading sensors at their rates, by absolute times.

Frame k of a sensor of 30 Hz is due k/30 seconds after the run began, whatever happened to those
before it: neither rounding nor a late wake-up adds up, and a stamp says when the frame was due and
not when a busy pipeline came to look (else its age would leave out the waiting). A sensor without
a rate is read as soon as there is room for its next frame, and stamped when it was read.

In a tight loop rates are kept in order and waiting is cut out: when there is room for the frame
that is due next, time is wound forward to it for all sensors. Frames that belong together keep
stamps that belong together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ridgeline.errors import in_words
from ridgeline.realtime.pipeline import SensorReading
from ridgeline.records.pipeline_shape import SensorShape

LONGEST_SLEEP_SECONDS = 0.05
"""Longer waits are cut into pieces, so that a run ends soon after it is told to."""


class RunClock:
    """Seconds since a run began, of `time.monotonic`, and how much waiting a tight loop cut out."""

    def __init__(self) -> None:
        self.origin = time.monotonic()
        """`time.monotonic` at the beginning."""
        self.skipped = 0.0

    def begin(self) -> None:
        """Let the run begin now."""
        self.origin = time.monotonic()

    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.origin

    def skip_to(self, due: float) -> None:
        """Wind all sensors forward, so that what is due then is due now."""
        self.skipped += max(0.0, due - self.now())

    def pause(self, seconds: float) -> None:
        """Put all sensors off by time that was spent on something else than frames."""
        self.skipped -= seconds


@dataclass(frozen=True, slots=True)
class SentFrame:
    """What a sensor sent."""

    frame: int
    stamp: float
    """Seconds since the run began."""
    data: Any


class SensorReader:
    """What one sensor sends next, and when.

    Args:
        shape: Its name and rate.
        read: Called with 0, 1, …
        limit: Frames to read; None: until the first sensor's last frame.
    """

    def __init__(
        self, shape: SensorShape, read: Callable[[int], Any], clock: RunClock, limit: int | None
    ) -> None:
        self.shape = shape
        self.name = shape.name
        self.index = 0
        """The number of the next frame."""
        self.ended = limit == 0
        self.fault: tuple[Literal["raised", "stopped"], str] | None = None
        """What went wrong in the last read; whoever reads it takes it away."""
        self.reading_since: float | None = None
        """When the read under way began; None: there is none."""
        self._read = read
        self._clock = clock
        self._limit = limit

    @property
    def due(self) -> float:
        """When the next frame is due; a sensor without a rate: at once."""
        if self.shape.rate_hz is None:
            return -math.inf
        return self.index / self.shape.rate_hz - self._clock.skipped

    def read(self) -> SentFrame | None:
        """What the sensor sends now; None: no frame came.

        A read that raises loses one frame; a source that has come to its end ends the sensor.
        """
        due, index = self.due, self.index
        data = None
        self.reading_since = self._clock.now()
        try:
            data = self._read(index)
        except StopIteration:
            self.ended = True
            self.fault = "stopped", f"its source ended after {index} frames"
            return None
        except Exception as error:
            self.fault = "raised", f"{type(error).__name__}: {in_words(error)}"
        finally:
            self.reading_since = None
        self.index += 1
        self.ended = self.ended or self.index == self._limit
        if data is None:
            return None
        stamp = self._clock.now() if due == -math.inf else due
        if not isinstance(data, SensorReading):
            return SentFrame(index, stamp, data)
        return SentFrame(
            index if data.frame is None else data.frame,
            stamp if data.stamp is None else data.stamp - self._clock.origin,
            data.data,
        )


class SensorGroup:
    """Sensors that one thread reads, in the order in which their frames are due.

    Args:
        readers: The sensors of this group.
        first: The run's first sensor, whose frames are counted: when it has sent its last one,
            the others send what is due until then and end too.
        tight: Cut out waiting.
    """

    def __init__(
        self, readers: Sequence[SensorReader], first: SensorReader, *, tight: bool
    ) -> None:
        self.readers = readers
        self._first = first
        self._tight = tight

    def next(self, has_room: Callable[[str], bool]) -> SensorReader | None:
        """The sensor to read next; None: all of them have ended.

        It is the one whose frame is due first. One without a rate that has no room gives way to
        the others, for whose frames its own may be waiting.
        """
        alive = [reader for reader in self.readers if not self.is_over(reader)]
        able = [reader for reader in alive
                if reader.shape.rate_hz is not None or has_room(reader.name)]  # fmt: skip
        return min(able or alive, key=lambda reader: (reader.due, reader.index), default=None)

    def waits_for_room(self, reader: SensorReader) -> bool:
        """Whether a frame is read only when the pipeline has a place for it."""
        return self._tight or reader.shape.rate_hz is None

    def is_over(self, reader: SensorReader) -> bool:
        """Whether a sensor has ended, or sent all that is due until the first one's end."""
        first = self._first
        if first.ended and reader is not first and not reader.ended:
            if reader.shape.rate_hz is None or first.shape.rate_hz is None:
                reader.ended = reader.index >= first.index
            else:
                last = (first.index - 1) / first.shape.rate_hz
                reader.ended = reader.index / reader.shape.rate_hz > last + 1e-9
        return reader.ended


def wait_until_due(reader: SensorReader, clock: RunClock, given_up: Callable[[], bool]) -> bool:
    """Sleep until the sensor's next frame is due; False: it is not to be read any more."""
    while not given_up():
        left = reader.due - clock.now()
        if left <= 0:
            return True
        time.sleep(min(left, LONGEST_SLEEP_SECONDS))
    return False
