"""What a simulation is asked for: the pipeline as it is, each change alone, all, a target."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.frames.outcomes import sink_ages
from ridgeline.plan.realtime.changes import apply_changes
from ridgeline.plan.realtime.event_loop import simulate_timing
from ridgeline.plan.realtime.figures import pipeline_figures, sink_figures
from ridgeline.plan.realtime.run_samples import timing_of_run
from ridgeline.plan.realtime.stage_table import (
    read_stage_table,
    shipped_tables,
    timing_of_table,
)
from ridgeline.plan.realtime.target import what_it_takes
from ridgeline.plan.realtime.timing import PipelineTiming
from ridgeline.records.realtime_run import RealtimeRun
from ridgeline.records.realtime_simulation import (
    RealtimeSimulation,
    SimulatedPipeline,
    SimulatedSink,
)
from ridgeline.records.store import read_record

MOST_FRAMES = 2000
"""Frames that are simulated unless more are asked for: a what-if is there in less than a second."""
TABLE_FRAMES = 1000
TARGET_FRAMES = 1000
"""The most frames behind a factor: each takes some ten simulations."""
P50_OFF, P99_OFF, MISS_OFF = 0.03, 0.15, 0.01
"""How far a simulation of the run as it was may lie from it before a note says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSource:
    """What is simulated, and where its times come from."""

    timing: PipelineTiming
    described: str
    measured: tuple[SimulatedSink, ...] = ()
    """What the run itself came to; empty for a table."""
    notes: tuple[str, ...] = ()


def read_source(name: str, seed: int = 0) -> SimulationSource:
    """A run's `run.json`, a stage table's `.toml`, or the name of a table that is shipped.

    Raises:
        InputError: None of these, or a file that is not whole.
    """
    shipped = shipped_tables()
    path = Path(name)
    if name in shipped and not path.exists():
        path = shipped[name]
    if path.suffix == ".toml":
        table = read_stage_table(path)
        return SimulationSource(
            timing=timing_of_table(table, name, seed),
            described=" ".join(filter(None, [table.source, table.date])) or f"table {name}",
            notes=table.notes,
        )
    if not path.exists() and path.suffix != ".json":
        raise InputError(
            f"{name}: no such file, and no table of ours; give the run.json of"
            f" `ridgeline realtime run --out`, a table.toml, or one of {', '.join(shipped)}"
        )
    run = read_record(path, RealtimeRun)
    timing = timing_of_run(run, name)
    notes = () if run.environment is not None or run.executor == "inline" else (
        "the run does not say how many cores it had: none is contended for",
    )  # fmt: skip
    return SimulationSource(
        timing=timing,
        described=f"run {name}: {run.executor}, {timing.slots - timing.warmup_slots} frames",
        measured=sink_figures(run),
        notes=notes,
    )


def simulate_realtime(
    source: SimulationSource,
    *,
    what_if: Sequence[str] = (),
    meet_seconds: float | None = None,
    max_miss: float = 0.001,
    frames: int | None = None,
    seed: int = 0,
    on_progress: Callable[[str], None] = lambda _: None,
) -> RealtimeSimulation:
    """Simulate a pipeline as it is and as it could be.

    Args:
        source: From `read_source`.
        what_if: Changes, as `changes.py` reads them.
        meet_seconds: Age of results to find the factors for; None: none are looked for.
        max_miss: Share of frames that may miss it.
        frames: Frames of the first sensor; None: those of the run, some thousands at most.
        seed: Draws frames beyond those that were measured, and times of tables.
        on_progress: Told what is under way.

    Raises:
        InputError: A change that is none, or that cannot be.
    """
    timing = source.timing
    known = timing.slots - timing.warmup_slots
    slots = frames if frames is not None else min(MOST_FRAMES, known)
    if frames is None and not source.measured:
        slots = TABLE_FRAMES
    if slots < 1:
        raise InputError(f"--frames {slots}: at least 1 is needed")
    if not 0.0 <= max_miss < 1.0:
        raise InputError(f"--max-miss {max_miss:g}: has to lie between 0 and 1")
    changed = [(text, apply_changes(timing, [text])) for text in what_if]
    if len(what_if) > 1:
        changed.append((" + ".join(what_if), apply_changes(timing, what_if)))
    on_progress(f"{timing.shape.name} as it is")
    base, as_it_is = _simulated(timing, "", slots, seed)
    answers: list[SimulatedPipeline] = []
    for text, variant in changed:
        on_progress(f"what if {text}")
        answers.append(_simulated(variant, text, slots, seed)[0])
    target = None
    if meet_seconds is not None:
        few = min(slots, TARGET_FRAMES)
        target = what_it_takes(timing, meet_seconds, max_miss, few, seed, on_progress)
    column = timing.columns.get(timing.column)
    return RealtimeSimulation(
        pipeline=timing.shape.name,
        source=source.described + (f", {column.device} {column.precision}" if column else ""),
        frames=slots,
        seed=seed,
        base=base,
        what_if=tuple(answers[: len(what_if)]),
        together=answers[-1] if len(what_if) > 1 else None,
        measured=source.measured,
        published_total_seconds=column.total_seconds if column else None,
        target=target,
        ages_seconds={
            sink: tuple(sink_ages(as_it_is, sink).tolist()) for sink in timing.shape.sinks
        },
        notes=(*source.notes, *_notes(source, base, what_if, frames, slots)),
    )


def _simulated(
    timing: PipelineTiming, text: str, slots: int, seed: int
) -> tuple[SimulatedPipeline, RealtimeRun]:
    begin = time.perf_counter()
    try:
        run = simulate_timing(timing, slots, seed)
    except InputError as error:
        raise InputError(f"--what-if {text}: {error}" if text else str(error)) from None
    return pipeline_figures(timing, run, text, time.perf_counter() - begin), run


def _notes(
    source: SimulationSource,
    base: SimulatedPipeline,
    what_if: Sequence[str],
    frames: int | None,
    slots: int,
) -> list[str]:
    found = []
    known = source.timing.slots - source.timing.warmup_slots
    if source.measured and slots < known:
        found.append(f"the first {slots:,} of {known:,} frames; --frames {known} takes all")
    if source.measured and frames is not None and slots > known:
        found.append(
            f"{known:,} frames were measured; beyond them blocks of these are drawn, and no tail"
            " that they do not have"
        )
    if source.measured and any("executor=" in text for text in what_if):
        found.append(
            f"measured with {source.timing.executor}: what another executor itself costs, and what"
            " threads lose to Python's lock, is not in the run"
        )
    return found + [
        f"{sink.sink}: {words}"
        for sink, was in zip(base.sinks, source.measured, strict=False)
        if (words := _off(sink, was))
    ]


def _off(sink: SimulatedSink, was: SimulatedSink) -> str:
    """How a simulation of the run as it was differs from it; empty: hardly."""
    found = []
    if sink.age is not None and was.age is not None:
        for name, value, measured, allowed in (
            ("P50", sink.age.p50, was.age.p50, P50_OFF),
            ("P99", sink.age.p99, was.age.p99, P99_OFF),
        ):
            if measured > 0.0 and abs(value / measured - 1.0) > allowed:
                found.append(f"{name} by {value / measured - 1.0:+.0%}")
    if sink.miss_share is not None and was.miss_share is not None:
        apart = sink.miss_share - was.miss_share
        if abs(apart) > max(MISS_OFF, 0.2 * was.miss_share):
            found.append(f"misses by {100 * apart:+.1f} points")
    if not found:
        return ""
    return f"simulated as it was, it differs from the run: {', '.join(found)}"
