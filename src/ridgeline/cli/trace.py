"""One command per question to profiler traces, `ridgeline trace …`: each reads, asks and shows.

The commands of questions that have an analysis and a view are made from the table of
`trace_questions.py` when they are named; `trace_across.py` joins ranks and compares runs,
`trace_drawn.py` draws and writes files. Ranks are read and asked in processes of their own; what
comes back is a record per GPU or rank, which `--out` writes as rows of a table.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_type_hints

import typer

from ridgeline.cli.show import Json, print_document, print_json, show_answer
from ridgeline.cli.trace_files import (
    Cache,
    Files,
    Out,
    Top,
    Window,
    ask,
    check_out,
    named_files,
    write_rows,
)
from ridgeline.cli.trace_questions import QUESTIONS, TraceQuestion
from ridgeline.errors import InputError
from ridgeline.report.document import Lines, ReportDocument
from ridgeline.trace.columns import Trace
from ridgeline.trace.time.summary import RankSummary, no_gpu_event

OPTIONS: dict[str, Any] = {
    "window": Window,
    "top": Top,
    "longest": Annotated[
        int, typer.Option(min=2, max=64, help="Kernels of the longest sequence to look for.")
    ],
    "tree": Annotated[
        bool, typer.Option("--tree", help="By the ranges around each, and not by name alone.")
    ],
    "by": Annotated[
        Literal["name", "shape", "line"],
        typer.Option(help="Group by name, by input shape, or by the line that calls."),
    ],
}
"""Options that a row of the table may ask for."""


def __getattr__(name: str) -> Callable[..., None]:
    """Make the command of a row of the table: `trace_idle` answers the question `idle`."""
    question = QUESTIONS.get(name.removeprefix("trace_").replace("_", "-"))
    if question is None or not question.analysis:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _command(name, question)


def _command(name: str, question: TraceQuestion) -> Callable[..., None]:
    """A function with the parameters that typer makes options of."""

    def command(
        files: list[str], out: Path | None, cache: Path | None, *, json: bool, **options: Any
    ) -> None:
        _answer(question, files, options, out, cache, json=json)

    takes: dict[str, tuple[Any, Any]] = {
        "files": (Files, inspect.Parameter.empty),
        **{option: (OPTIONS[option], default) for option, default in question.options.items()},
        "out": (Out, None),
        "cache": (Cache, None),
        "json": (Json, False),
    }
    command.__name__ = name
    command.__doc__ = f"{question.tells[0].upper()}{question.tells[1:]}."
    command.__annotations__ = {option: kind for option, (kind, _) in takes.items()}
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
            )
            for option, (kind, default) in takes.items()
        ]
    )
    return command


def _answer(
    question: TraceQuestion,
    files: list[str],
    options: dict[str, Any],
    out: Path | None,
    cache: Path | None,
    *,
    json: bool,
) -> None:
    """Ask every trace, and show the records or print them."""
    check_out(out, files)
    asked = _named(question.analysis)
    analysis = partial(_or_why_not, analysis=partial(asked, **options))
    ranks: list[Any] = []
    warnings: list[str] = []
    for why_not, found in ask(files, analysis, details=question.details, cache=cache):
        ranks += found if isinstance(found, list) else [found]
        if found == []:
            warnings.append(why_not)
    if json:
        print_json({"ranks": ranks, "warnings": warnings})
    else:
        if ranks:
            print_document(_named(question.view)(ranks))
        print_document(ReportDocument("", [Lines(warnings, "warning")]))
    write_rows(out, _record_of(asked), ranks, question.rows, json=json)


def _or_why_not(trace: Trace, analysis: Callable[[Trace], Any]) -> tuple[str, Any]:
    """What to say if the answer is empty, and the answer."""
    return f"{trace.file}: {no_gpu_event(trace)}", analysis(trace)


def _record_of(analysis: Callable[..., Any]) -> type:
    """The record that an analysis returns, or of which it returns a list; of several the first."""
    returned = get_type_hints(analysis)["return"]
    kind: Any = (*get_args(returned), returned)[0]
    found: type = (*get_args(kind), kind)[0] if isinstance(kind, UnionType) else kind
    return found


def _named(place: str) -> Callable[..., Any]:
    """The function that `module:function` names."""
    module, _, name = place.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def trace_summary(
    files: Files,
    window: Window = "trace",
    out: Out = None,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Where the time went on each rank's GPU, and what bounds it."""
    from ridgeline.diagnose.trace_facts import summary_and_facts
    from ridgeline.diagnose.trace_verdict import verdict_of
    from ridgeline.report.views.trace_summary import summary_document

    check_out(out, files)
    answers = ask(files, partial(summary_and_facts, window=window), details=True, cache=cache)
    ranks = [summary for summaries, _ in answers for summary in summaries]
    verdict = verdict_of([fact for _, facts in answers for fact in facts])
    found = {"ranks": ranks, "verdict": verdict}
    show_answer(found, summary_document(ranks, verdict), json=json)
    write_rows(out, RankSummary, ranks, json=json)


def trace_memory(
    files: Files,
    window: Window = "trace",
    top: Top = 20,
    out: Out = None,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Memory over time, from a trace's allocations or a snapshot: peak, growth, who holds it."""
    from ridgeline.report.views.trace_memory import memory_document
    from ridgeline.trace.formats import format_of
    from ridgeline.trace.formats.memory_snapshot import FORMAT
    from ridgeline.trace.memory.allocations import RankMemory, memory_use

    check_out(out, files)
    paths = named_files(files)
    snapshots = [path for path in paths if format_of(path) is FORMAT]
    if snapshots:
        if out is not None:
            raise InputError(f"--out {out}: {snapshots[0]} is a memory snapshot; take --json")
        if window != "trace":
            raise InputError(
                f"--window {window}: {snapshots[0]} is a memory snapshot, without steps"
            )
        _show_snapshots(snapshots, len(paths), json=json)
        return
    ranks = ask(files, partial(memory_use, window=window, top=top), cache=cache)
    show_answer({"ranks": ranks}, memory_document(ranks), json=json)
    write_rows(out, RankMemory, ranks, "devices", json=json)


def _show_snapshots(paths: list[Path], given: int, *, json: bool) -> None:
    """Answer the same question from memory snapshots of torch."""
    from ridgeline.report.views.trace_memory import snapshot_document
    from ridgeline.trace.formats.memory_snapshot import read_snapshot
    from ridgeline.trace.memory.snapshot import snapshot_memory

    if len(paths) != given:
        raise InputError(f"{paths[0]}: a memory snapshot; ask about snapshots and traces apart")
    found = {str(path): snapshot_memory(read_snapshot(path)) for path in paths}
    if json:
        print_json({"snapshots": [{"file": name, "devices": found[name]} for name in found]})
        return
    for devices in found.values():
        print_document(snapshot_document(devices))
