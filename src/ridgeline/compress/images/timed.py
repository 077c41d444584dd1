"""Rows of a ledger with the calls of their models, each in its own process and runtime."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from msgspec.structs import replace

from ridgeline.compress.evaluate.judge import of_rounds
from ridgeline.compress.images.material import Images
from ridgeline.compress.images.measure import speedup, time_in_turns
from ridgeline.compress.images.models import VisionModel
from ridgeline.compress.images.quantised import OnnxModule
from ridgeline.compress.images.recognised import ONNX, PROGRAM
from ridgeline.compress.images.saved import export_to
from ridgeline.compress.vision.batches import Batch, inputs_of, moved, rows_of
from ridgeline.errors import ChildDied, InputError
from ridgeline.measure.statistics.metric import quantile_interval
from ridgeline.records.compression import Speedup
from ridgeline.records.image_compression import Bounded, Calls, ImageRow, Latency

BATCHES = (1, 8)
"""One image, as a camera gives it, and a few."""


def timed(
    rows: Sequence[ImageRow],
    models: Sequence[tuple[VisionModel, Path | None]],
    images: Images,
    work: Path,
    on_progress: Callable[[str], None],
) -> list[ImageRow]:
    """The rows with calls at each batch, and the last one's speed-up.

    Where the last row computes in ONNX Runtime, the model as given is timed there as well as in
    PyTorch, and the speed-up is over the model as given in the same runtime: what another runtime
    alone gains is no merit of fewer bits. Models on a GPU, and models that cannot be exported, are
    timed in turns in this process.

    Args:
        rows: In order.
        models: Of each row, with the folder of what is saved.
        images: Real ones.
        work: A folder for what the processes read.
        on_progress: Told what is under way.
    """
    if any(_on_gpu(model) for model, _ in models):
        return _in_this_process(rows, models, images, on_progress)
    try:
        candidates = _candidates(models, images, work, on_progress)
    except InputError as error:
        found = _in_this_process(rows, models, images, on_progress)
        return [*found[:-1], replace(found[-1], remark=_joined(found[-1].remark, str(error)))]
    flat = [one for per_row in candidates for one in per_row]
    owner = [place for place, per_row in enumerate(candidates) for _ in per_row]
    threads = torch.get_num_threads()
    calls: list[list[Calls]] = [[] for _ in rows]
    first: list[TimedCalls] = []
    for batch in BATCHES:
        if len(images) < batch or batch > (images.most or batch):
            continue
        taken = time_calls(flat, images.head(batch), work, threads=threads, on_progress=on_progress)
        first = first or taken
        for place, one, own in zip(owner, flat, taken, strict=True):
            calls[place].append(summary(one, own, batch, threads))
    results = [
        replace(row, calls=tuple(own), latency=_latency(first[owner.index(place)], own[0]))
        for place, (row, own) in enumerate(zip(rows, calls, strict=True))
    ]
    for place in range(1, len(results)):
        above, below = _pair(flat, owner, place)
        results[place] = replace(results[place], speedup=faster(first[above], first[below]))
    return results


def _latency(found: TimedCalls, one: Calls) -> Latency:
    """The same calls as other records have them, for `ridgeline compare`."""
    medians = found.medians
    return Latency(
        seconds=statistics.median(medians),
        round_seconds=tuple(medians),
        batch=one.batch,
        dtype=one.runtime.rpartition(", ")[2],
        device="cpu",
        threads=one.threads,
    )


def _pair(flat: Sequence[TimedCandidate], owner: Sequence[int], place: int) -> tuple[int, int]:
    """The candidates that a row's speed-up compares: the nearest above it in the same runtime."""
    own = next(at for at, row in enumerate(owner) if row == place)
    same = [
        at for at, row in enumerate(owner) if row < place and flat[at].runtime == flat[own].runtime
    ]
    return same[-1], own


def _candidates(
    models: Sequence[tuple[VisionModel, Path | None]],
    images: Images,
    work: Path,
    on_progress: Callable[[str], None],
) -> list[list[TimedCandidate]]:
    """Files that processes of their own can load, for each row."""
    example = images.head(2)
    work.mkdir(parents=True, exist_ok=True)
    results: list[list[TimedCandidate]] = []
    last = models[-1][0]
    for place, (model, folder) in enumerate(models):
        if isinstance(model.module, OnnxModule):
            assert folder is not None
            version = f"ONNX Runtime {model.module.version}"
            results.append(
                [
                    TimedCandidate(
                        file=folder / ONNX, runtime="onnx", computed_with=f"{version}, int8"
                    )
                ]
            )
            continue
        on_progress("writing models to be timed")
        program = work / f"{place}-{PROGRAM}"
        export_to(model.module, example, program)
        own = [
            TimedCandidate(
                file=program, runtime="torch", computed_with=f"PyTorch {torch.__version__}, fp32"
            )
        ]
        if isinstance(last.module, OnnxModule) and place == len(models) - 2:
            version = f"ONNX Runtime {last.module.version}"
            path = work / f"{place}-{ONNX}"
            export_to(model.module, example, path)
            own.append(TimedCandidate(file=path, runtime="onnx", computed_with=f"{version}, fp32"))
        results.append(own)
    return results


def _in_this_process(
    rows: Sequence[ImageRow],
    models: Sequence[tuple[VisionModel, Path | None]],
    images: Images,
    on_progress: Callable[[str], None],
) -> list[ImageRow]:
    place = next(one for one in models[0][0].module.parameters() if one.is_floating_point())
    image = moved(images.head(1), place)
    modules = [model.module for model, _ in models]
    found = time_in_turns(modules, image, on_progress=on_progress)
    results = [replace(rows[0], latency=found[0])]
    for row, above, own in zip(rows[1:], found[:-1], found[1:], strict=True):
        results.append(replace(row, latency=own, speedup=speedup(above, own)))
    return results


def _on_gpu(model: VisionModel) -> bool:
    return any(one.device.type == "cuda" for one in model.module.parameters())


def _joined(*said: str) -> str:
    return "; ".join(one for one in said if one)


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

    Two runtimes in one process each start a pool of threads that spin, so that each slows the
    other; and models timed one after the other meet another machine each. So every candidate waits
    in its own process while another one is called, and the order turns around from round to round.

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
