"""The observers of one run: started before its workers, read when it has ended.

What workers wrote on the board becomes further columns of the run's calls.
"""

from __future__ import annotations

import os
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from statistics import median

import msgspec

from ridgeline.realtime.observe import watcher as watcher_script
from ridgeline.realtime.observe.board import BoardMemory, CallRow, CollectionRow, make_board
from ridgeline.realtime.observe.call_meter import leave, make_meter
from ridgeline.realtime.observe.watcher import HeaderSlot
from ridgeline.realtime.pipeline import Pipeline
from ridgeline.records.realtime_run import (
    Collection,
    Interference,
    RealtimeRun,
    StageCalls,
    WaitSample,
    WaitState,
)

ELSEWHERE = "other threads"
"""Where collections are counted that no stage's thread made."""
_END_SECONDS = 5.0
_SPARE_CALLS = 256


class SeenFromOutside(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the watcher prints; times are nanoseconds of the monotonic clock."""

    waits: list[tuple[int, int, WaitState]] = []
    interference: list[Interference] = []


class RunObserver:
    """Watches one run, from before its workers start until its columns are complete.

    Args:
        pipeline: Stays as it is; `metered` is run in its place.
        frames: How many frames of its first sensor are to be run.
    """

    def __init__(self, pipeline: Pipeline, frames: int) -> None:
        self._board: BoardMemory | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._outside: SeenFromOutside | None = None
        self.metered = pipeline
        """The pipeline whose workers count."""
        if not observing_is_possible():
            return
        self._board = make_board((*pipeline.code, ELSEWHERE), _calls(pipeline, frames))
        place = self._board.place
        self.metered = pipeline.changed(
            code={
                name: replace(code, meter=partial(make_meter, place, name))
                for name, code in pipeline.code.items()
            }
        )

    def start(self) -> None:
        """Start the process that looks from outside, before any worker calls a stage."""
        if self._board is None:
            return
        place = self._board.place
        command = [sys.executable, "-I", "-S", watcher_script.__file__, str(self._board.descriptor)]
        self._watcher = subprocess.Popen(
            [*command, str(len(place.regions)), str(place.region_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[self._board.descriptor],
            start_new_session=True,  # Ctrl-C ends the run, and the run ends its watcher
        )
        elsewhere = self._board.region(ELSEWHERE)
        elsewhere.slots[HeaderSlot.WATCHER] = self._watcher.pid
        elsewhere.release()

    def stop(self) -> None:
        """End the observers, whatever became of the run."""
        leave()
        if self._watcher is None:
            return
        try:
            printed, _ = self._watcher.communicate(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._watcher.kill()
            self._watcher.communicate()
            return
        if printed:
            self._outside = msgspec.json.decode(printed, type=SeenFromOutside)

    def add_to(self, run: RealtimeRun, began: float) -> RealtimeRun:
        """The run with what the observers saw.

        Args:
            run: Its columns complete, its workers gone.
            began: When the run began, in seconds of `time.monotonic`.
        """
        notes = list(run.notes)
        if self._board is None:
            notes.append("not observed: that needs Linux with scheduler statistics (schedstat)")
            return msgspec.structs.replace(run, notes=notes)
        outside = self._outside
        if outside is None:
            notes.append("the process that watches the run ended early: nobody to name beside it")
            outside = SeenFromOutside()
        names = self._board.place.regions
        rows: dict[str, list[CallRow]] = {}
        collections: list[Collection] = []
        price = 0
        for name in names:
            region = self._board.region(name)
            rows[name] = list(region.calls())
            collections += [_collection(name, row, began) for row in region.collections()]
            price = max(price, region.slots[HeaderSlot.FAULT_PICOSECONDS])
            if region.unwritten:
                notes.append(f"the last {region.unwritten} calls of {name} were not observed")
            region.release()
        self._board.close()
        return msgspec.structs.replace(
            run,
            calls=[observed_calls(calls, rows[calls.stage], began) for calls in run.calls],
            collections=_without_doubles(run.collections, collections),
            interference=[
                msgspec.structs.replace(
                    each,
                    started=seconds_since(began, each.started),
                    ended=seconds_since(began, each.ended),
                )
                for each in outside.interference
            ],
            waits=[
                WaitSample(at_seconds=seconds_since(began, at), stage=names[number], state=state)
                for at, number, state in outside.waits
            ],
            page_fault_seconds=price * 1e-12 or None,
            notes=notes,
        )


def observing_is_possible() -> bool:
    """Whether this system has what the observers read."""
    return hasattr(os, "memfd_create") and os.path.exists("/proc/thread-self/schedstat")


def _calls(pipeline: Pipeline, frames: int) -> int:
    """Room for the calls of one stage: one that a faster sensor leads is called more often."""
    rates = [sensor.rate_hz for sensor in pipeline.shape.sensors if sensor.rate_hz]
    faster = max(rates) / min(rates) if rates else 1.0
    return ceil(frames * max(2.0, faster)) + _SPARE_CALLS


def _collection(thread: str, row: CollectionRow, began: float) -> Collection:
    return Collection(
        started=seconds_since(began, row.started),
        ended=seconds_since(began, row.ended),
        generation=row.generation,
        thread=thread,
    )


def _without_doubles(known: list[Collection], seen: list[Collection]) -> list[Collection]:
    """Both lists in order; of a collection that stands in both, the one that is known."""
    own = [
        each
        for each in seen
        if not any(one.started <= each.ended and each.started <= one.ended for one in known)
    ]
    return sorted(known + own, key=lambda each: each.started)


def seconds_since(began: float, nanoseconds: float) -> float:
    """A time of the monotonic clock in seconds since the run began."""
    return nanoseconds * 1e-9 - began


def observed_calls(calls: StageCalls, rows: Sequence[CallRow], began: float) -> StageCalls:
    """The calls with what was observed of each.

    A call lies within its row, as meters begin before it and end after it. Calls without a row (a
    stage that was held or skipped, one beyond the board's room) get zeros; a stage without any row
    gets no columns at all.
    """
    if not rows:
        return calls
    starts = [seconds_since(began, row.started) for row in rows]
    matched = [
        rows[bisect_right(starts, at + _ROUNDING_SECONDS) - 1]
        if mode in ("run", "degrade") and at + _ROUNDING_SECONDS >= starts[0]
        else _NO_ROW
        for at, mode in zip(calls.started, calls.modes, strict=True)
    ]
    matched = [
        row if seconds_since(began, row.ended) > at else _NO_ROW
        for row, at in zip(matched, calls.started, strict=True)
    ]
    return msgspec.structs.replace(
        calls,
        cpu_seconds=[row.cpu * 1e-9 for row in matched],
        core_wait_seconds=[row.core_wait * 1e-9 for row in matched],
        wake_wait_seconds=[row.wake_wait * 1e-9 for row in matched],
        collecting_seconds=[row.collecting * 1e-9 for row in matched],
        page_faults=[row.page_faults for row in matched],
        major_faults=[row.major_faults for row in matched],
        switches=[row.switches for row in matched],
        cores=[row.core for row in matched],
        slowdowns=_slowdowns(matched),
    )


_ROUNDING_SECONDS = 1e-6
_NO_ROW = CallRow(*[0] * len(CallRow._fields))


def _slowdowns(rows: Sequence[CallRow]) -> list[float]:
    """The fixed work after each call over its median; that of the call before where it has none."""
    measured = [row.fixed_work for row in rows if row.fixed_work]
    usual = last = median(measured) if measured else 1.0
    slowdowns = []
    for row in rows:
        last = row.fixed_work or last
        slowdowns.append(last / usual)
    return slowdowns
