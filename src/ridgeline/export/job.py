"""One job from a model to a report: reference, conversions, comparisons, rounds in turns.

Everything lies in `DIR.partial` until it has been judged; what held is then renamed to `DIR`, which
is whole or not there. Each format is converted in one process, and loaded, compared and measured in
another that has not seen the model.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from ridgeline.errors import ChildDied, InputError
from ridgeline.export import cached, orders
from ridgeline.export.process import Worker, WorkerFailed
from ridgeline.export.verdict import judged
from ridgeline.hardware.environment import environment
from ridgeline.measure.statistics.intervals import ratio_interval
from ridgeline.records.compression import Speedup
from ridgeline.records.runtime_export import ExportRow, ExportSpeed, Fusion, RuntimeExport
from ridgeline.records.store import write_record
from ridgeline.records.work_folder import empty, held
from ridgeline.runtimes import Precision, runtime

LEDGER = "export.json"
ROUNDS = 7
"""Six are the fewest that give a ratio an interval of 95 %."""
THROUGHPUT_SHARE = 0.03
"""Each batch of the throughput takes this share of the time of the rounds."""
Progress = Callable[[str], None]
_A = TypeVar("_A")


def _usable_threads() -> int:
    """Cores that this process may use, or what OMP_NUM_THREADS says."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    if said.isdigit() and int(said) > 0:
        return int(said)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportJob:
    """What is exported, to what, and how it is judged."""

    model: str
    targets: tuple[str, ...]
    check: Path
    out: Path
    precision: Precision = "fp32"
    weights: Path | None = None
    image_size: int | None = None
    fix: orders.Fix = "nothing"
    max_drop: float | None = None
    threads: int = field(default_factory=_usable_threads)
    measure_seconds: float = 10.0
    """Calls of each format, all rounds together; 0: nothing is measured."""
    period_seconds: float | None = None

    @property
    def work(self) -> Path:
        """Where everything lies until it has been judged."""
        return self.out.with_name(f"{self.out.name}.partial")


def export(job: ExportJob, on_progress: Progress) -> RuntimeExport:
    """Convert, compare, measure, and leave what held in `job.out`.

    Raises:
        InputError: The job cannot be done with what was given.
        RidgelineError: A worker died.
    """
    _check(job)
    with _work_folder(job):
        log = job.work / "log"
        on_progress("running the model in eager float32")
        with Worker(log, job.threads) as worker:
            reference = worker.ask(_model_order(job), orders.ReferenceAnswer)
        rows = [_eager_row(reference)]
        for target in job.targets:
            on_progress(f"{target}: converting")
            rows.append(_converted(job, target, reference, log))
        rows = _compared_and_measured(job, rows, reference, log, on_progress)
        return _finished(job, rows, reference)


def _check(job: ExportJob) -> None:
    for target in job.targets:
        runtime(target)
    if len(set(job.targets)) < len(job.targets):
        raise InputError("--to: a format is named twice; name each once")
    if job.out.exists() and (not job.out.is_dir() or any(job.out.iterdir())):
        raise InputError(f"--out {job.out}: there is something already; give another place")
    if not job.out.parent.is_dir():
        raise InputError(f"--out {job.out}: {job.out.parent} is no folder; make it first")
    known = {one for target in job.targets for one in runtime(target).CARD.precisions}
    if job.precision not in known:
        raise InputError(
            f"--precision {job.precision}: {', '.join(job.targets)} do not compute in it here;"
            f" known: {', '.join(sorted(known))}"
        )


@contextmanager
def _work_folder(job: ExportJob) -> Iterator[None]:
    with held(job.work, job.out):
        empty(job.work)
        try:
            yield
        finally:
            shutil.rmtree(job.work, ignore_errors=True)


def _model_order(job: ExportJob) -> orders.ModelOrder:
    return orders.ModelOrder(
        source=job.model,
        weights=_weights(job),
        check=str(job.check),
        image_size=job.image_size,
        calibrate=job.precision == "int8",
        folder=str(job.work),
        threads=job.threads,
    )


def _weights(job: ExportJob) -> str | None:
    return None if job.weights is None else str(job.weights)


def _eager_row(reference: orders.ReferenceAnswer) -> ExportRow:
    return ExportRow(
        format=orders.EAGER,
        precision="fp32",
        status="ok",
        likeness=tuple(reference.likeness),
        top1=reference.top1,
    )


# -- conversion ------------------------------------------------------------------------------------


def _converted(
    job: ExportJob, target: str, reference: orders.ReferenceAnswer, log: Path
) -> ExportRow:
    """A row of what was written, or of why it could not be."""
    card = runtime(target).CARD
    precision = job.precision if job.precision in card.precisions else "fp32"
    row = ExportRow(format=target, precision=precision, status="ok")
    notes: tuple[str, ...] = ()
    if precision != job.precision:
        notes = (f"has no {job.precision}: fp32",)
    key = cached.key_of(card, reference.digest, precision, job.fix, job.threads)
    folder = job.work / target
    found, damaged = cached.take(key, folder)
    notes += (damaged,) if damaged else ()
    if found is not None:
        return replace(row, cached=True, notes=(*notes, *found.notes))
    order = orders.ConvertOrder(
        source=job.model,
        weights=_weights(job),
        folder=str(job.work),
        runtime=target,
        precision=precision,
        fix=job.fix,
    )
    try:
        with Worker(log, job.threads) as worker:
            made = worker.ask(order, orders.ConvertAnswer)
    except (WorkerFailed, ChildDied) as error:
        return replace(row, status="failed", reason=str(error), notes=notes)
    cached.keep(key, folder, made)
    return replace(row, convert_seconds=made.seconds, notes=(*notes, *made.notes))


# -- comparison and measurement ------------------------------------------------------------------


def _compared_and_measured(
    job: ExportJob,
    rows: list[ExportRow],
    reference: orders.ReferenceAnswer,
    log: Path,
    on_progress: Progress,
) -> list[ExportRow]:
    """Each format in a process of its own; they wait while another is called."""
    workers: dict[int, Worker] = {}
    loaded: dict[int, orders.LoadAnswer] = {}
    measures = job.measure_seconds > 0
    try:
        for place, row in enumerate(rows):
            if row.status != "ok" or (row.format == orders.EAGER and not measures):
                continue
            on_progress(f"{row.format}: loading in a fresh process, and comparing")
            workers[place] = Worker(log, job.threads)
            try:
                loaded[place] = workers[place].ask(_load_order(job, row), orders.LoadAnswer)
                if row.format != orders.EAGER:
                    rows[place] = _compared(job, row, workers[place], reference, log)
            except (WorkerFailed, ChildDied) as error:
                rows[place] = replace(row, status="failed", reason=f"does not run: {error}")
            if rows[place].status != "ok":
                workers.pop(place).close()
        if measures and len(workers) > 1:
            return _measured(job, rows, workers, loaded, on_progress)
    finally:
        for worker in workers.values():
            worker.close()
    return rows


def _load_order(job: ExportJob, row: ExportRow) -> orders.LoadOrder:
    eager = row.format == orders.EAGER
    return orders.LoadOrder(
        folder=str(job.work),
        runtime=row.format,
        threads=job.threads,
        source=job.model if eager else "",
        weights=_weights(job) if eager else None,
    )


def _compared(
    job: ExportJob,
    row: ExportRow,
    worker: Worker,
    reference: orders.ReferenceAnswer,
    log: Path,
) -> ExportRow:
    found = worker.ask(orders.CompareOrder(), orders.CompareAnswer)
    folder = job.work / row.format
    row = replace(
        row,
        likeness=tuple(found.likeness),
        top1=found.top1,
        size_bytes=sum(one.stat().st_size for one in folder.rglob("*") if one.is_file()),
        fusion=None if found.fusion is None else _fusion(reference.operators, found.fusion),
    )
    row = judged(row, reference.top1, job.max_drop)
    if row.status == "ok":
        return row
    worst = min(
        (place for place, one in enumerate(row.likeness) if not one.fixed),
        key=lambda place: row.likeness[place].sqnr_db or math.inf,
    )
    order = orders.StagesOrder(
        source=job.model,
        weights=_weights(job),
        folder=str(job.work),
        runtime=row.format,
        case=worst,
    )
    try:
        with Worker(log, job.threads) as another:
            stage = another.ask(order, orders.StagesAnswer).stage
    except (WorkerFailed, ChildDied) as error:
        return replace(row, notes=(*row.notes, f"its layers could not be compared: {error}"))
    return replace(row, wrong_stage=stage)


def _fusion(before: dict[str, int], after: dict[str, int]) -> Fusion:
    return Fusion(
        operators=sum(before.values()), kernels=sum(after.values()), before=before, after=after
    )


def _measured(
    job: ExportJob,
    rows: list[ExportRow],
    workers: dict[int, Worker],
    loaded: dict[int, orders.LoadAnswer],
    on_progress: Progress,
) -> list[ExportRow]:
    """Rounds in turns, closed and paced; then throughput, one after the other."""
    periods = [None] if job.period_seconds is None else [None, job.period_seconds]
    share = job.measure_seconds / ROUNDS / len(periods)
    medians: dict[int, list[float]] = {place: [] for place in workers}
    for number in range(ROUNDS):
        for place in list(workers):
            on_progress(f"{rows[place].format}: round {number + 1} of {ROUNDS}")
            for period in periods:
                order = orders.RoundOrder(seconds=share, period_seconds=period)
                done = _asked(rows, workers, place, order, orders.RoundAnswer)
                if done is None:
                    break
                if period is None:
                    medians[place].append(done.median_seconds)
    seconds = THROUGHPUT_SHARE * job.measure_seconds
    for place in list(workers):
        on_progress(f"{rows[place].format}: throughput")
        ordered = orders.SpeedOrder(seconds=seconds)
        speed = _asked(rows, workers, place, ordered, orders.SpeedAnswer)
        if speed is None:
            continue
        rows[place] = replace(
            rows[place],
            speed=ExportSpeed(
                load_seconds=loaded[place].load_seconds,
                first_call_seconds=loaded[place].first_call_seconds,
                closed=speed.closed,
                paced=speed.paced,
                throughput=tuple(speed.throughput),
                peak_memory_bytes=speed.peak_memory_bytes,
                before_memory_bytes=loaded[place].before_memory_bytes,
            ),
            speedup=_speedup(medians[0], medians[place]) if place and 0 in workers else None,
        )
    return rows


def _asked(
    rows: list[ExportRow],
    workers: dict[int, Worker],
    place: int,
    order: orders.Order,
    kind: type[_A],
) -> _A | None:
    """A worker's answer; None where it fails, which is its own row's end and no other's."""
    try:
        return workers[place].ask(order, kind)
    except (WorkerFailed, ChildDied) as error:
        reason = f"fails while it is timed: {error}"
        rows[place] = replace(rows[place], status="failed", reason=reason)
        workers.pop(place).close()
        return None


def _speedup(eager: Sequence[float], own: Sequence[float]) -> Speedup:
    found = ratio_interval(eager, own)
    return Speedup(
        ratio=found.ratio,
        ci_low=found.low if found.low > 0 else None,
        ci_high=found.high if math.isfinite(found.high) else None,
        rounds=found.rounds,
    )


# -- the end ---------------------------------------------------------------------------------------


def _finished(
    job: ExportJob, rows: list[ExportRow], reference: orders.ReferenceAnswer
) -> RuntimeExport:
    """Move the formats that held, and the report, to DIR at once."""
    kept = [row for row in rows if row.status == "ok" and row.format != orders.EAGER]
    named = []
    for row in rows:
        file = None
        if row in kept:
            (job.work / row.format / "log").unlink(missing_ok=True)
            file = str(job.out / row.format / _file_of(job.work / row.format))
        named.append(replace(row, file=file))
    found = RuntimeExport(
        model=job.model,
        check=str(job.check),
        inputs=reference.inputs,
        notes=tuple(reference.notes),
        threads=job.threads,
        max_drop=job.max_drop,
        rows=tuple(named),
        saved=str(job.out) if kept else None,
        environment=environment(),
    )
    if kept:
        ready = job.work / "ready"
        ready.mkdir()
        for row in kept:
            os.replace(job.work / row.format, ready / row.format)
        write_record(ready / LEDGER, found)
        if job.out.exists():
            job.out.rmdir()  # it is empty
        os.replace(ready, job.out)
    return found


def _file_of(folder: Path) -> str:
    from ridgeline.runtimes import Artifact

    return Artifact.read(folder).file
