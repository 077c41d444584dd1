"""One call of a stage's code, measured."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from ridgeline.errors import in_words
from ridgeline.realtime.observe.call_meter import StageMeter
from ridgeline.realtime.pipeline import StageCode
from ridgeline.records.realtime_run import CallMode


class CallOutcome(msgspec.Struct, eq=False):
    """What came of a call; times are `time.monotonic`'s."""

    output: Any
    started: float
    ended: float
    cpu_seconds: float
    gpu_seconds: float | None = None
    enqueue_seconds: float | None = None
    failure: str = ""
    """What went wrong, as `raised ValueError: …`; empty: it returned."""
    place: str = ""
    """File and line of the code that raised."""
    died: bool = False
    """Its process died with it."""


class StageCaller:
    """Calls a stage's code, in the mode that the flow wants."""

    def __init__(self, code: StageCode) -> None:
        self._code = code
        self._meter: StageMeter | None = None

    def __call__(self, mode: CallMode, inputs: tuple[Any, ...]) -> CallOutcome:
        """Run one frame through the stage."""
        code = self._code.call
        if mode == "degrade":
            assert self._code.cheaper is not None
            code = self._code.cheaper
        if self._code.meter is None:
            return timed(code, inputs)
        if self._meter is None:
            self._meter = self._code.meter()
        self._meter.begin()
        outcome = timed(code, inputs)
        self._meter.end()
        return outcome


def timed(code: Callable[..., Any], inputs: tuple[Any, ...]) -> CallOutcome:
    """Call the code; an exception of its own is an outcome, an interruption is not."""
    cpu = time.thread_time()
    started = time.monotonic()
    try:
        output = code(*inputs)
    except Exception as error:
        ended = time.monotonic()
        spent = time.thread_time() - cpu
        return CallOutcome(None, started, ended, spent, failure=failure(error), place=_place(error))
    ended = time.monotonic()
    return CallOutcome(output, started, ended, time.thread_time() - cpu)


def failure(error: Exception) -> str:
    """What a frame's fate says of an exception."""
    return f"raised {type(error).__name__}: {in_words(error)}"


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if len(frames) > 1 else ""
