"""The flow under a lock, where sensors and stages have threads or processes of their own.

Whoever brings an event (a frame that came, a call that ended) also hands out the calls that it
makes possible, so none waits for a scheduler's thread to be woken.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ridgeline.frames.jobs import FrameJob
from ridgeline.realtime.executors.calls import CallOutcome, failure
from ridgeline.realtime.executors.sensors import (
    SensorGroup,
    SensorReader,
    SentFrame,
    wait_until_due,
)
from ridgeline.realtime.executors.state import ExecutionState

LOOK_SECONDS = 0.05
"""Time between two looks at whether a run has ended or was told to."""
SILENT_SECONDS = 1.0
SILENT_PERIODS = 20
"""A sensor whose read has not returned for so long, whichever is longer, has stopped; one without
a rate may take its time."""


class Dispatch:
    """Events in, calls out.

    Args:
        run: The run; touched under the lock alone.
        send: Hands a call to its stage's worker, which is waiting for one.
    """

    def __init__(self, run: ExecutionState, send: Callable[[FrameJob], None]) -> None:
        self.run = run
        self.lock = threading.Lock()
        self.error: BaseException | None = None
        """What failed in a thread of ours, for the main thread to raise."""
        self._send = send
        self._changed = threading.Condition(self.lock)
        self._running = 0
        self._waiting = 0
        self._closed = False

    def arrive(self, reader: SensorReader, sent: SentFrame | None) -> None:
        """A sensor sent a frame, or failed."""
        with self.lock:
            if not self._closed:
                self._hand_out(self.run.arrive(reader, sent))

    def ended(self, job: FrameJob, outcome: CallOutcome, payload: Any) -> bool:
        """A call ended; whether nothing runs now."""
        with self.lock:
            self._running -= 1
            self._hand_out(self.run.ended(job, outcome, payload))
            if not self._running:
                self.run.hold.idle()
                self._changed.notify_all()
            return not self._running

    def stopped(self, readers: list[SensorReader]) -> None:
        """Sensors send no more."""
        with self.lock:
            if not self._closed:
                self._hand_out(self.run.stop_sensors(readers))
                self._changed.notify_all()

    def collect_in_slack(self) -> None:
        """Use the time until the next frame, as nothing runs."""
        steady = self.run.order.steady
        if steady is not None and (slack := self.run.slack_seconds) > 0:
            steady.idle(slack)

    def next_with_room(self, group: SensorGroup) -> SensorReader | None:
        """The sensor that a thread reads next, once there is room where it waits for that."""
        with self.lock:
            while not self.run.stop.came:
                reader = group.next(self.run.flow.room)
                if reader is None:
                    return None
                has_room = not group.waits_for_room(reader) or (
                    self.run.flow.room(reader.name) and not self.run.hold.is_on
                )
                if has_room or not self._running:  # else it waits for a frame of another sensor
                    return reader
                self._waiting += 1
                self._changed.wait(LOOK_SECONDS)
                self._waiting -= 1
        return None

    def put_off(self, reader: SensorReader) -> bool:
        """Wait until frames of the warm-up hold a due one up no longer; whether they did."""
        held = False
        with self.lock:
            while self.run.hold.holds(reader) and not self.run.stop.came:
                held = True
                self._changed.wait(LOOK_SECONDS)
            if held and not self.run.stop.came:
                self.run.put_off()
        return held

    def end_warm_up(self) -> None:
        """Settle before the first frame that counts; nothing is handed out meanwhile."""
        with self.lock:
            if self.run.warm_up_is_over:
                self.run.end_warm_up()

    def wait_for_change(self) -> None:
        """Wait until something has ended, or a moment."""
        with self.lock:
            self._changed.wait(LOOK_SECONDS)

    def drain(self, wait: Callable[[], None]) -> None:
        """Hand out what is left, and `wait` until nothing runs."""
        with self.lock:
            names = list(reversed(self.run.flow.graph.order))
            self._hand_out(self.run.stop_sensors(self.run.readers) + names)
        while self._running and self.error is None:
            wait()
        self.close()

    def close(self) -> None:
        """Take no more events: what comes now comes after the run."""
        with self.lock:
            self._closed = True

    def fail(self, error: BaseException) -> None:
        """Remember what went wrong in a thread of ours, and end the run."""
        self.error = self.error or error
        self.run.stop.ask("failed")

    def _hand_out(self, woken: list[str]) -> None:
        flow, clock = self.run.flow, self.run.clock
        while woken:
            for name in woken:
                job = flow.take(name, clock.now())
                if job is not None:
                    self._running += 1
                    self.run.hold.busy()
                    self._send(job)
            woken = flow.woken()
        if self._waiting:
            self._changed.notify_all()


class SensorThreads:
    """A thread per sensor; in a tight loop one for all, so that they keep their order."""

    def __init__(self, dispatch: Dispatch, wrap: Callable[[SensorReader, Any], Any]) -> None:
        self._dispatch = dispatch
        self._run = run = dispatch.run
        self._wrap = wrap
        """Makes of a sensor's data what travels."""
        groups = [run.readers] if run.order.tight else [[reader] for reader in run.readers]
        self._groups = [run.group(readers) for readers in groups]
        self._threads = [
            threading.Thread(target=self._work, args=(group,), daemon=True,
                             name=f"sensor {group.readers[0].name}")
            for group in self._groups
        ]  # fmt: skip
        self._silent: set[str] = set()

    def start(self) -> None:
        """Let the sensors send."""
        for thread in self._threads:
            thread.start()

    def wait(self, wait: Callable[[], None]) -> None:
        """Return when all have ended or fallen silent; `wait` passes the time until a change."""
        while self._dispatch.error is None and any(self._live()):
            wait()
            self._report_silence()
            self._run.show_progress(self._run.slack_seconds)

    def join(self) -> None:
        """Wait for the end of threads that can end."""
        for thread in self._live():
            thread.join(SILENT_SECONDS)

    def _live(self) -> Iterator[threading.Thread]:
        for thread, group in zip(self._threads, self._groups, strict=True):
            if thread.is_alive() and not any(one.name in self._silent for one in group.readers):
                yield thread

    def _report_silence(self) -> None:
        for reader in self._run.readers:
            since = reader.reading_since
            if since is None or reader.name in self._silent:
                continue
            silent = self._run.clock.now() - since
            if silent > self._patience_seconds(reader):
                self._silent.add(reader.name)
                reader.fault = "stopped", f"its read has not returned for {silent:.1f} s"
                reader.ended = True
                self._dispatch.arrive(reader, None)

    def _patience_seconds(self, reader: SensorReader) -> float:
        if self._run.stop.came:
            return SILENT_SECONDS
        rate_hz = reader.shape.rate_hz
        return math.inf if rate_hz is None else max(SILENT_SECONDS, SILENT_PERIODS / rate_hz)

    def _work(self, group: SensorGroup) -> None:
        try:
            if self._run.order.steady is not None:
                self._run.order.steady.enter_worker(threading.current_thread().name)
            while (reader := self._dispatch.next_with_room(group)) is not None:
                self._read(group, reader)
            self._dispatch.stopped(list(group.readers))
        except BaseException as error:  # the main thread raises it
            self._dispatch.fail(error)

    def _read(self, group: SensorGroup, reader: SensorReader) -> None:
        clock = self._run.clock
        if not group.waits_for_room(reader):
            stop = self._run.stop
            if not wait_until_due(reader, clock, lambda: stop.came or group.is_over(reader)):
                return
            if self._dispatch.put_off(reader):
                return
        elif self._run.order.tight:
            clock.skip_to(reader.due)
        if reader is self._run.first and self._run.warm_up_is_over:
            self._dispatch.end_warm_up()
            return
        sent = reader.read()
        if sent is not None:
            sent = self._wrapped(reader, sent)
        if reader.name not in self._silent:
            self._dispatch.arrive(reader, sent)

    def _wrapped(self, reader: SensorReader, sent: SentFrame) -> SentFrame | None:
        try:
            return SentFrame(sent.frame, sent.stamp, self._wrap(reader, sent.data))
        except Exception as error:  # pickle calls the user's own code
            reader.fault = "raised", f"its frame cannot be sent: {failure(error)}"
            return None
