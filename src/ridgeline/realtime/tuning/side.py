"""One variant of the pipeline, in a process of its own: opened, watched, timed, compared.

The job writes orders to one pipe and reads answers from another; what the pipeline itself prints
goes to the log of this process. It ends when the pipe of orders does.

Frames are timed at the frame rate, without frames that wait for others. A pipeline that is slower
than its sensors queues, and the age of its results then says more of the queue than of the code. So
both sides of a comparison run at one period that the slower of them holds; the pipeline's own rate
is left to the last proof.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import BinaryIO

import msgspec

from ridgeline.errors import InputError, RidgelineError, in_words
from ridgeline.realtime.cures import RunChoice, all_cures, choice_after, cure
from ridgeline.realtime.declared import quality_of
from ridgeline.realtime.execute import execute
from ridgeline.realtime.pipeline import Pipeline, read_pipeline
from ridgeline.realtime.recording import FREE_RUNNING_HZ, Recording, Replay, record, replay
from ridgeline.realtime.results import PipelineResults, check_within, plain_result
from ridgeline.realtime.rewriting.graph import without_deadline
from ridgeline.realtime.steady import SteadyProcess
from ridgeline.realtime.tuning import wire
from ridgeline.realtime.tuning.wire import FramesTimed
from ridgeline.records.realtime_run import RealtimeRun


class VariantSide:
    """A pipeline with a stack of cures."""

    def __init__(self, order: wire.OpenSide) -> None:
        import torch

        made = read_pipeline(order.pipeline)
        self._quality = quality_of(made)
        path = Path(order.recording)
        if not path.exists():
            record(made, order.frames).write(path)
            made = read_pipeline(order.pipeline)  # sensors may have moved stages' state
        self._recording = Recording.read(path)
        self._choice = RunChoice(threads=torch.get_num_threads())
        for applied in order.stack:
            known = cure(applied.name)
            made = known.apply(made, applied.options)
            self._choice = choice_after(self._choice, known, applied.options)
        self._pipeline: Pipeline = made
        replay(made, self._recording, range(order.prime))
        self._seen = replay(made, self._recording, range(order.prime, order.frames))
        self._results = self._laid_out(self._seen)
        Path(order.results).write_bytes(pickle.dumps(self._results))
        self._frames = order.frames

    def _laid_out(self, seen: Replay) -> PipelineResults:
        figures = {} if self._quality is None else dict(self._quality(seen.results))
        return PipelineResults(
            sinks={
                sink: [(frame, plain_result(value)) for frame, value in rows]
                for sink, rows in seen.results.items()
            },
            quality={name: float(value) for name, value in figures.items()},
        )

    def opened(self) -> wire.SideOpened:
        """What the job needs to know of the pipeline."""
        shape = self._pipeline.shape
        return wire.SideOpened(
            frame_seconds=median(self._seen.frame_seconds),
            period_seconds=1 / (shape.sensors[0].rate_hz or FREE_RUNNING_HZ),
            deadline_seconds=shape.deadline_seconds,
            quality=dict(self._results.quality),
            threads=self._choice.threads,
            name=shape.name,
        )

    def find(self, order: wire.FindCures) -> wire.CuresFound:
        """Which cures apply to the pipeline as it now is."""
        from ridgeline.realtime.rewriting.observe import observe

        frames = range(min(order.frames, self._frames))
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        found = replace(
            observe(self._pipeline, self._recording, frames, cores),
            has_quality=self._quality is not None,
            queue_ratio=order.queue_ratio,
        )
        fits = {name: known.applies(self._pipeline, found) for name, known in all_cures().items()}
        return wire.CuresFound(
            offers=[
                wire.CureOffer(name=name, options=list(fit.options), reason=fit.reason)
                for name, fit in fits.items()
            ],
            stage_seconds=dict(found.stage_seconds),
        )

    def time(self, order: wire.TimeFrames) -> wire.FramesTimed:
        """Time a block of frames."""
        return time_frames(
            self._pipeline,
            self._recording,
            self._choice,
            frames=order.frames,
            period_seconds=order.period_seconds,
        )

    def compare(self, order: wire.CompareResults) -> wire.ResultsCompared:
        """Hold the results against another side's."""
        content = Path(order.other).read_bytes()
        other: PipelineResults = pickle.loads(content)  # noqa: S301 - the other side wrote it
        found = check_within(cure(order.cure).CARD.freedom)(other, self._results, order.may_fall)
        return wire.ResultsCompared(passed=found.passed, summary=found.summary)


def serve(orders: BinaryIO, answers: BinaryIO) -> None:
    """Carry out orders until there are no more."""
    side: VariantSide | None = None
    for line in orders:
        order = msgspec.json.decode(line, type=wire.Order)
        answer: wire.Answer
        try:
            if isinstance(order, wire.OpenSide):
                side = VariantSide(order)
                answer = side.opened()
            else:
                answer = _carry_out(side, order)
        except RidgelineError as error:
            answer = wire.SideFailed(reason=in_words(error))
        except Exception as error:
            import traceback

            traceback.print_exc()
            answer = wire.SideFailed(reason=f"{type(error).__name__}: {in_words(error)}")
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()


def _carry_out(side: VariantSide | None, order: wire.Order) -> wire.Answer:
    if side is None:
        raise InputError("no pipeline is open")
    if isinstance(order, wire.FindCures):
        return side.find(order)
    if isinstance(order, wire.TimeFrames):
        return side.time(order)
    assert isinstance(order, wire.CompareResults)
    return side.compare(order)


def main() -> None:
    """Serve the pipes whose numbers are the arguments."""
    orders, answers = (int(word) for word in sys.argv[1:3])
    sys.path.insert(0, os.getcwd())
    with os.fdopen(orders, "rb") as given, os.fdopen(answers, "wb") as told:
        serve(given, told)


WARMUP = 3
"""Leading frames of each block, after the other side ran on the same cores."""


def time_frames(
    pipeline: Pipeline,
    recording: Recording,
    choice: RunChoice,
    *,
    frames: int,
    period_seconds: float | None,
) -> FramesTimed:
    """Run a block of recorded frames.

    Args:
        pipeline: As it is after its cures.
        recording: Sent again and again.
        choice: Executor and steadiness.
        frames: After a few that only warm up.
        period_seconds: Of the first sensor, the others' in proportion; None: a tight loop.
    """
    run = execute(
        _replaying(pipeline, recording, period_seconds),
        executor=choice.executor,
        frames=frames,
        warmup=WARMUP,
        steady=SteadyProcess() if choice.steady else None,
        tight=period_seconds is None,
    )
    return _timed(run)


def _replaying(pipeline: Pipeline, recording: Recording, period_seconds: float | None) -> Pipeline:
    """The pipeline on recorded frames at this period, without a deadline."""
    shape = pipeline.shape
    sensors = tuple(
        msgspec.structs.replace(one, rate_hz=one.rate_hz or FREE_RUNNING_HZ)
        for one in shape.sensors
    )
    first = sensors[0].rate_hz or FREE_RUNNING_HZ
    slower = 1.0 if period_seconds is None else period_seconds * first
    paced = pipeline.changed(msgspec.structs.replace(shape, sensors=sensors))
    made = without_deadline(paced, slower=slower)
    made.readers.update(recording.readers())
    return made


def _timed(run: RealtimeRun) -> FramesTimed:
    """Latencies of the frames after the warm-up: the age of each at the last sink it reached."""
    first = run.shape.sensors[0].name
    ages: dict[int, float] = defaultdict(float)
    sent: set[int] = set()
    ends: list[float] = []
    for table in run.fates:
        if table.sensor != first:
            continue
        kept = slice(run.warmup_frames, None)
        rows = zip(table.frames, table.stamps, table.ended, table.kinds, strict=True)
        for frame, stamp, ended, kind in list(rows)[kept]:
            sent.add(frame)
            if ended is not None and kind in ("delivered", "late"):
                ages[frame] = max(ages[frame], ended - stamp)
                ends.append(ended)
    spans = {
        calls.stage: [
            end - start
            for frame, start, end in zip(calls.frames, calls.started, calls.ended, strict=True)
            if frame in ages
        ]
        for calls in run.calls
    }
    return FramesTimed(
        latencies=list(ages.values()),
        stage_seconds={name: median(spent) for name, spent in spans.items() if spent},
        delivered=len(ages),
        sent=len(sent),
        seconds=max(ends) - min(ends) if len(ends) > 1 else None,
    )
