"""One command per question to profiler traces, `ridgeline trace …`: each reads, asks and shows.

The commands of questions that have an analysis and a view are made from the table of
`trace_questions.py` when they are named; those that join ranks, compare runs or write files have
functions of their own here. Ranks are read and asked in processes of their own; what comes back is
a record per GPU or rank, which `--out` writes as rows of a table.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from ridgeline.cli.output_options import Json, output_file
from ridgeline.cli.show import print_document, print_json, say, told, write_page
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
from ridgeline.errors import InputError, Regression
from ridgeline.report.document import Lines, ReportDocument
from ridgeline.trace.columns import Trace
from ridgeline.trace.time.summary import NO_GPU, RankSummary

if TYPE_CHECKING:
    from ridgeline.diagnose.trace_answers import RankAnswers, TraceAnswers

WhatIf = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        metavar="CLASS=PERCENT",
        help="Shorten a class and recompute the window; may be given several times.",
    ),
]
OPTIONS: dict[str, Any] = {
    "window": Window,
    "top": Top,
    "longest": Annotated[
        int, typer.Option(min=2, max=64, help="Kernels of the longest sequence to look for.")
    ],
    "tree": Annotated[
        bool, typer.Option("--tree", help="By the ranges around each, and not by name alone.")
    ],
    "by": Annotated[str, typer.Option(help="Group by `name`, `shape` or `line`.")],
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
    analysis = partial(_with_file, analysis=partial(asked, **options))
    ranks: list[Any] = []
    warnings: list[str] = []
    for file, found in ask(files, analysis, details=question.details, cache=cache):
        ranks += found if isinstance(found, list) else [found]
        if found == []:
            warnings.append(f"{file}: {NO_GPU}")
    if json:
        print_json({"ranks": ranks, "warnings": warnings})
    else:
        if ranks:
            print_document(_named(question.view)(ranks))
        print_document(ReportDocument("", [Lines(warnings, "warning")]))
    write_rows(out, _record_of(asked), ranks, question.rows, json=json)


def _with_file(trace: Trace, analysis: Callable[[Trace], Any]) -> tuple[str, Any]:
    return trace.file, analysis(trace)


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
    if json:
        print_json({"ranks": ranks, "verdict": verdict})
    else:
        print_document(summary_document(ranks, verdict))
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
    if json:
        print_json({"ranks": ranks})
    else:
        print_document(memory_document(ranks))
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


def trace_critical_path(
    files: Files, what_if: WhatIf = None, cache: Cache = None, json: Json = False
) -> None:
    """The chain of launches, kernels and waits that made the run as long as it was; what-if."""
    from ridgeline.report.views.trace_across import critical_path_document
    from ridgeline.trace.critical_path.path import check_classes, job_path
    from ridgeline.trace.critical_path.rank_path import rank_path

    shorten = _shortened(what_if or [])
    check_classes(shorten)
    path = job_path(ask(files, partial(rank_path, shorten=shorten), cache=cache), shorten)
    if json:
        print_json(path)
    else:
        print_document(critical_path_document(path))


def trace_stragglers(files: Files, cache: Cache = None, json: Json = False) -> None:
    """Which rank arrives last at collectives, and how much of communication is waiting for it."""
    from ridgeline.report.views.trace_across import stragglers_document
    from ridgeline.trace.communication.matching import rank_collectives
    from ridgeline.trace.communication.stragglers import stragglers

    ranks = ask(files, rank_collectives, cache=cache)
    if len(ranks) < 2:
        raise InputError(
            f"{files[0]}: stragglers needs the traces of two ranks or more; name them all, or "
            "their folder"
        )
    found = stragglers(ranks)
    if json:
        print_json(found)
    else:
        print_document(stragglers_document(found))


def trace_ranks(
    files: Files,
    window: Window = "trace",
    top: Top = 30,
    out: Out = None,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Kernel times over ranks in one table: mean, extremes, spread, ranks that stand out."""
    from ridgeline.report.views.trace_ranks import ranks_document
    from ridgeline.trace.time.across_ranks import KernelsOverRanks, kernels_over_ranks, rank_totals

    check_out(out, files)
    answers = ask(files, partial(rank_totals, window=window), cache=cache)
    totals = [rank for answer in answers for rank in answer]
    if len(totals) < 2:
        raise InputError(
            f"{files[0]}: ranks needs traces of two GPUs or more on which something ran; name them"
            " all, or their folder"
        )
    found = kernels_over_ranks(totals, top=top)
    if json:
        print_json(found)
    else:
        print_document(ranks_document(found))
    write_rows(out, KernelsOverRanks, [found], "kernels", json=json)


def trace_compare(
    reference: Annotated[
        str,
        typer.Argument(metavar="A", help="What to hold against: a trace, a folder, or a glob."),
    ],
    new: Annotated[str, typer.Argument(metavar="B", help="What to judge: the same.")],
    by: Annotated[
        str, typer.Option(help="Align by `operator`, `shape` (of its inputs) or `kernel`.")
    ] = "operator",
    threshold: Annotated[
        float, typer.Option(min=0.0, help="Smallest slowdown that matters: 0.02 is 2 %.")
    ] = 0.02,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """What is new, gone, slower or faster in B; exit 3 when B is slower beyond noise.

    The traces of a folder are the ranks of one job, or, where they have the same rank or none,
    repeats of one run.
    """
    from ridgeline.report.views.trace_comparison import comparison_document, ranks_document
    from ridgeline.trace.compare.comparison import check_grouping, compare_sides
    from ridgeline.trace.compare.sides import JobRepeats
    from ridgeline.trace.compare.times import rank_times

    check_grouping(by)
    question = partial(rank_times, by=by)
    a, b = (
        JobRepeats.of(ask([side], question, details=True, cache=cache)) for side in (reference, new)
    )
    if len(a.ranks) != len(b.ranks):
        raise InputError(
            f"{reference} has {len(a.ranks)} ranks and {new} has {len(b.ranks)}; compare runs of "
            "the same number of ranks, or one rank of each"
        )
    whole = compare_sides(a, b, by=by, threshold=threshold)
    several = len(a.ranks) > 1
    ranks = [
        compare_sides(*pair, by=by, threshold=threshold)
        for pair in zip(a.ranks, b.ranks, strict=True)
    ] if several else [whole]  # fmt: skip
    if json:
        print_json({"job": whole if several else None, "ranks": ranks})
    else:
        print_document(comparison_document(whole))
        if several:
            print_document(ranks_document(ranks))
    if whole.verdict == "slower":
        raise Regression(f"{whole.file_b}: {whole.summary}")


def trace_tree(
    files: Files,
    top: Annotated[int, typer.Option(min=1, help="How many rows to show.")] = 60,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Frames, operators and calls inside each other, with host and GPU time."""
    from ridgeline.report.views.trace_across import tree_document
    from ridgeline.trace.pictures.flame import flame_graph

    trees = ask(files, flame_graph, cache=cache)
    if json:
        print_json({"ranks": trees})
    else:
        for roots in trees:
            print_document(tree_document(roots, top))


def trace_stack(
    files: Files,
    gpu: Annotated[bool, typer.Option("--gpu", help="Weigh by GPU time, not host time.")] = False,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Folded stacks on stdout, one per line, as flamegraph.pl and speedscope read them."""
    from ridgeline.trace.pictures.flame import folded

    stacks = ask(files, partial(folded, gpu=gpu), cache=cache)
    if json:
        print_json({"ranks": stacks})
    else:
        for lines in stacks:
            say("\n".join(lines))


def trace_export(
    files: Files,
    out: Annotated[Path, output_file("OUT.json[.gz]", "The file to write; .gz compresses it.")],
    cache: Cache = None,
    json: Json = False,
) -> None:
    """The trace for Perfetto, with counters and the critical path as tracks beside its events."""
    from ridgeline.trace.pictures.export import export_chrome
    from ridgeline.trace.pictures.tracks import rank_tracks

    ranks = ask(files, rank_tracks, cache=cache)
    with told("--out", out):
        counts = export_chrome(named_files(files), ranks, out, cache=cache)
    if json:
        drawn = {"flows": counts.tracks.flows, "counters": counts.tracks.counters,
                 "path_pieces": counts.tracks.path_pieces}  # fmt: skip
        print_json({"file": str(out), "events": counts.events, **drawn,
                    "warnings": counts.warnings})  # fmt: skip
        return
    say(f"{out}: {counts.events} events; open it at https://ui.perfetto.dev")
    print_document(ReportDocument("", [Lines(counts.warnings, "warning")]))


def trace_report(
    files: Files,
    html: Annotated[Path, output_file("OUT.html", "The page to write.")],
    window: Window = "trace",
    cache: Cache = None,
    json: Json = False,
) -> None:
    """One page for a browser: verdict, timeline, flame graph, and a table for every question."""
    from ridgeline.report.views.trace_page import trace_page_document

    found = _every_answer(files, window, cache)
    write_page("--html", html, trace_page_document(found))
    size = html.stat().st_size
    if json:
        print_json({"file": str(html), "bytes": size})
    else:
        say(f"{html}: {size / 1e6:.1f} MB; open it in a browser")


def _every_answer(files: list[str], window: str, cache: Path | None) -> TraceAnswers:
    """Ask everything of a few traces; of many the facts, and everything of a few of them."""
    from ridgeline.diagnose.trace_answers import (
        FEW_RANKS,
        asked_in_full,
        rank_answers,
        rank_outline,
        trace_answers,
    )

    def ask_everything(chosen: list[str]) -> list[RankAnswers]:
        question = partial(rank_answers, window=window, ranks=len(named_files(chosen)))
        return ask(chosen, question, details=True, cache=cache)

    if len(named_files(files)) <= FEW_RANKS:
        return trace_answers(ask_everything(files))
    outlines = ask(files, partial(rank_outline, window=window), details=True, cache=cache)
    return asked_in_full(outlines, ask_everything)


def _shortened(given: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for text in given:
        name, _, percent = text.partition("=")
        try:
            found[name.strip()] = float(percent.strip().removesuffix("%"))
        except ValueError:
            raise InputError(
                f"--what-if {text}: write a class and a percentage, such as gemm=20"
            ) from None
    return found
