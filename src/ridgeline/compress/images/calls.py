"""P50 and P99 of a call of several models, each in a process of its own, in interleaved rounds.

Two runtimes in one process each start a pool of threads that spin, so that each slows the other;
and models timed one after the other meet another machine each. So every candidate waits in its own
process while another one is called, and the order turns around from round to round.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ridgeline.compress.evaluate.judge import of_rounds
from ridgeline.compress.vision.batches import Batch, inputs_of, rows_of
from ridgeline.errors import ChildDied
from ridgeline.measure.statistics.metric import quantile_interval
from ridgeline.records.compression import Speedup
from ridgeline.records.image_compression import Bounded, Calls

ROUNDS = 12
"""6 or more give a speed-up an interval at 95 %."""
CALLS = 1000
"""Calls of each candidate, with which P99 is bounded from both sides."""
SECONDS = 20.0
"""Seconds of each candidate at each batch, at most; then there are fewer calls, which is said."""
WARM_CALLS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCandidate:
    """A model to be called."""

    file: Path
    runtime: str
    """`torch` (an exported program) or `onnx`."""
    computed_with: str
    """What readers are told: the runtime, its version and the number format."""


@dataclass(slots=True)
class TimedCalls:
    """What one candidate's calls took."""

    first_seconds: float
    rounds: list[list[float]] = field(default_factory=list)

    @property
    def medians(self) -> list[float]:
        """The median of each round."""
        return [statistics.median(one) for one in self.rounds]


def time_calls(
    candidates: Sequence[TimedCandidate],
    images: Batch,
    work: Path,
    *,
    threads: int,
    calls: int = CALLS,
    seconds: float = SECONDS,
    on_progress: Callable[[str], None] = lambda _: None,
) -> list[TimedCalls]:
    """Call each candidate on the same images, in turns.

    Args:
        candidates: Of the same model or its compressions.
        images: A batch of real inputs.
        work: A folder for what the processes read.
        threads: Of each, which are the cores that one may use alone.
        calls: Of each candidate.
        seconds: Of each candidate, at most.
        on_progress: Told what is under way.

    Raises:
        ChildDied: A candidate's process ended.
    """
    work.mkdir(parents=True, exist_ok=True)
    file = work / f"images-{rows_of(images)}.npz"
    np.savez(file, *[one.numpy() for one in inputs_of(images)])
    processes: list[subprocess.Popen[str]] = []
    try:
        found = []
        for one in candidates:
            processes.append(_start(one, file, threads))
            found.append(TimedCalls(_answer(processes[-1], one)[0]))
            _ask(processes[-1], WARM_CALLS, seconds / ROUNDS)
            _answer(processes[-1], one)
        order = list(range(len(candidates)))
        for number in range(ROUNDS):
            on_progress(f"timing batch {rows_of(images)}, round {number + 1} of {ROUNDS}")
            for place in order:
                _ask(processes[place], -(-calls // ROUNDS), seconds / ROUNDS)
                found[place].rounds.append(_answer(processes[place], candidates[place]))
            order.reverse()
        return found
    finally:
        for process in processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def summary(candidate: TimedCandidate, found: TimedCalls, batch: int, threads: int) -> Calls:
    """The quantiles of a candidate's calls."""
    every = [seconds for one in found.rounds for seconds in one]
    return Calls(
        runtime=candidate.computed_with,
        batch=batch,
        calls=len(every),
        first_seconds=found.first_seconds,
        p50=_bounded(every, 0.5),
        p99=_bounded(every, 0.99),
        threads=threads,
    )


def faster(before: TimedCalls, after: TimedCalls) -> Speedup:
    """The speed-up that interleaved rounds show."""
    return of_rounds(before.medians, after.medians)


def _bounded(seconds: Sequence[float], quantile: float) -> Bounded:
    value, low, high = quantile_interval(seconds, quantile)
    return Bounded(seconds=value, ci_low=low, ci_high=high)


def _start(one: TimedCandidate, images: Path, threads: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "ridgeline.compress.images.call_worker"]
    words += [str(one.file), one.runtime, str(threads), str(images)]
    return subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def _ask(process: subprocess.Popen[str], calls: int, seconds: float) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(f"{calls} {seconds}\n")
        process.stdin.flush()
    except BrokenPipeError:
        return  # whoever waits for the answer says so


def _answer(process: subprocess.Popen[str], one: TimedCandidate) -> list[float]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise ChildDied(
            f"{one.file.name} cannot be timed: its process ended with code {process.wait()}; leave"
            " it out with --no-speed"
        )
    seconds: list[float] = json.loads(line)
    return seconds
