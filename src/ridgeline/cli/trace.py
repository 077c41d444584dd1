"""`ridgeline trace …`: one command per question to profiler traces. Each reads, asks and shows.

Ranks are read and asked in processes of their own; what comes back is a record per GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.output_options import Json
from ridgeline.cli.show import print_document, print_json
from ridgeline.cli.trace_files import Answer, Cache, Files, Top, Window, ask
from ridgeline.errors import InputError
from ridgeline.report.document import Lines, ReportDocument
from ridgeline.trace.columns import Trace
from ridgeline.trace.summary import NO_GPU


def trace_summary(
    files: Files, window: Window = "trace", cache: Cache = None, json: Json = False
) -> None:
    """Where the time went on each rank's GPU, and what bounds it."""
    from ridgeline.diagnose.trace_facts import trace_facts
    from ridgeline.diagnose.trace_verdict import verdict_of
    from ridgeline.report.views.trace import summary_document

    answers = ask(files, partial(trace_facts, window=window), details=True, cache=cache)
    facts = [fact for answer in answers for fact in answer]
    ranks, verdict = [fact.summary for fact in facts], verdict_of(facts)
    if json:
        print_json({"ranks": ranks, "verdict": verdict})
    else:
        print_document(summary_document(ranks, verdict))


def trace_idle(
    files: Files,
    window: Window = "trace",
    top: Top = 10,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Why the GPU waited, what the host did meanwhile, and the largest gaps."""
    from ridgeline.report.views.trace import idle_document
    from ridgeline.trace.idle import idle_time

    question = partial(idle_time, window=window, top=top)
    _show_gpus(_ask_gpus(files, question, details=True, cache=cache), idle_document, json=json)


def trace_kernels(
    files: Files,
    window: Window = "trace",
    top: Top = 30,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """GPU time by kernel and class, tensor cores, occupancy, launch delay, roofline position."""
    from ridgeline.report.views.trace import kernels_document
    from ridgeline.trace.kernels import kernel_use

    question = partial(kernel_use, window=window, top=top)
    _show_gpus(_ask_gpus(files, question, details=True, cache=cache), kernels_document, json=json)


def trace_overlap(
    files: Files,
    window: Window = "trace",
    top: Top = 10,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """How much communication and copying hides behind compute."""
    from ridgeline.report.views.trace import overlap_document
    from ridgeline.trace.overlap import overlap

    question = partial(overlap, window=window, top=top)
    _show_gpus(_ask_gpus(files, question, cache=cache), overlap_document, json=json)


def trace_communication(
    files: Files,
    window: Window = "trace",
    top: Top = 30,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Collectives by kind, group and size, with their bandwidth."""
    from ridgeline.report.views.trace import communication_document
    from ridgeline.trace.communication import communication

    question = partial(communication, window=window, top=top)
    answers = _ask_gpus(files, question, details=True, cache=cache)
    _show_gpus(answers, communication_document, json=json)


def trace_launch(
    files: Files, window: Window = "trace", cache: Cache = None, json: Json = False
) -> None:
    """Is the GPU waiting for launches? Delays, queue depth, CUDA graphs."""
    from ridgeline.report.views.trace import launch_document
    from ridgeline.trace.launch import launches

    question = partial(launches, window=window)
    _show_gpus(_ask_gpus(files, question, cache=cache), launch_document, json=json)


def trace_sync(
    files: Files,
    window: Window = "trace",
    top: Top = 20,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Every wait of the host for the GPU, where it is asked for and what it costs."""
    from ridgeline.report.views.trace import sync_document
    from ridgeline.trace.sync import sync_points

    question = partial(sync_points, window=window, top=top)
    _show({"ranks": ask(files, question, details=True, cache=cache)}, sync_document, json=json)


def trace_steps(files: Files, cache: Cache = None, json: Json = False) -> None:
    """Each profiler step with its phases, the variation, and the outlier."""
    from ridgeline.report.views.trace import steps_document
    from ridgeline.trace.steps import step_times

    _show({"ranks": ask(files, step_times, cache=cache)}, steps_document, json=json)


def trace_operators(
    files: Files,
    by: Annotated[str, typer.Option(help="Group by `name`, `shape` or `line`.")] = "name",
    window: Window = "trace",
    top: Top = 30,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Host and GPU time by operator, by input shape, or by the line that calls it."""
    from ridgeline.report.views.trace import operators_document
    from ridgeline.trace.operators import GROUPINGS, operator_times

    if by not in GROUPINGS:
        raise InputError(f"--by {by}: there is {', '.join(GROUPINGS)}")
    question = partial(operator_times, window=window, by=by, top=top)
    _show({"ranks": ask(files, question, details=True, cache=cache)}, operators_document, json=json)


def trace_memory(files: Files, top: Top = 20, cache: Cache = None, json: Json = False) -> None:
    """Memory over time from the trace's allocations: peak, growth, who holds it."""
    from ridgeline.report.views.trace_memory import memory_document
    from ridgeline.trace.memory import memory_use

    snapshots = [name for name in files if name.endswith((".pickle", ".pkl"))]
    if snapshots:
        _show_snapshots(snapshots, len(files), json=json)
        return
    question = partial(memory_use, top=top)
    _show({"ranks": ask(files, question, cache=cache)}, memory_document, json=json)


def _show_snapshots(names: list[str], given: int, *, json: bool) -> None:
    """The memory snapshots of torch: another file, the same question."""
    from ridgeline.report.views.trace_memory import snapshot_document
    from ridgeline.trace.snapshot import read_snapshot
    from ridgeline.trace.snapshot_memory import snapshot_memory

    if len(names) != given:
        raise InputError(f"{names[0]}: a memory snapshot; ask about snapshots and traces apart")
    found = {name: snapshot_memory(read_snapshot(Path(name))) for name in names}
    if json:
        print_json({"snapshots": [{"file": name, "devices": found[name]} for name in names]})
        return
    for devices in found.values():
        print_document(snapshot_document(devices))


def _ask_gpus(
    files: list[str],
    question: Callable[[Trace], list[Answer]],
    *,
    details: bool = False,
    cache: Path | None = None,
) -> tuple[list[Answer], list[str]]:
    """An answer per GPU, and a line for each trace in which nothing ran on a GPU."""
    answers = ask(files, partial(_named, question=question), details=details, cache=cache)
    silent = [f"{file}: {NO_GPU}" for file, found in answers if not found]
    return [answer for _, found in answers for answer in found], silent


def _named(trace: Trace, question: Callable[[Trace], list[Answer]]) -> tuple[str, list[Answer]]:
    return trace.file, question(trace)


def _show_gpus(
    found: tuple[list[Answer], list[str]],
    view: Callable[[list[Answer]], ReportDocument],
    *,
    json: bool,
) -> None:
    ranks, warnings = found
    if json:
        print_json({"ranks": ranks, "warnings": warnings})
        return
    if ranks:
        print_document(view(ranks))
    print_document(ReportDocument("", [Lines(warnings, "warning")]))


def _show(
    document: dict[str, list[Any]], view: Callable[[list[Any]], ReportDocument], *, json: bool
) -> None:
    if json:
        print_json(document)
    else:
        print_document(view(document["ranks"]))
