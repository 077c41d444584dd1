"""Questions to the traces of several ranks or runs together: each joins, asks and shows."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import typer

from ridgeline.cli.show import Json, print_document, print_json, show_answer
from ridgeline.cli.trace_files import Cache, Files, Out, Top, Window, ask, check_out, write_rows
from ridgeline.errors import InputError, Regression

WhatIf = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        metavar="CLASS=PERCENT",
        help="Shorten a class and recompute the window; repeatable.",
    ),
]


def trace_critical_path(
    files: Files,
    what_if: WhatIf = None,
    out: Out = None,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """The chain of launches, kernels and waits that made the run as long as it was; what-if."""
    from ridgeline.report.views.trace_across import critical_path_document
    from ridgeline.trace.critical_path.path import CriticalPath, check_classes, job_path
    from ridgeline.trace.critical_path.rank_path import rank_path

    check_out(out, files)
    shorten = _shortened(what_if or [])
    check_classes(shorten)
    path = job_path(ask(files, partial(rank_path, shorten=shorten), cache=cache), shorten)
    show_answer(path, critical_path_document(path), json=json)
    write_rows(out, CriticalPath, [path], "names", json=json)


def trace_stragglers(
    files: Files, out: Out = None, cache: Cache = None, json: Json = False
) -> None:
    """Which rank arrives last at collectives, and how much of communication is waiting for it."""
    from ridgeline.report.views.trace_across import stragglers_document
    from ridgeline.trace.communication.matching import rank_collectives
    from ridgeline.trace.communication.stragglers import Stragglers, stragglers

    check_out(out, files)
    ranks = ask(files, rank_collectives, cache=cache)
    if len(ranks) < 2:
        raise InputError(
            f"{files[0]}: stragglers needs the traces of two ranks or more; name them all, or "
            "their folder"
        )
    found = stragglers(ranks)
    show_answer(found, stragglers_document(found), json=json)
    write_rows(out, Stragglers, [found], "collectives", json=json)


def trace_ranks(
    files: Files,
    window: Window = "trace",
    top: Top = 30,
    out: Out = None,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Kernel times over ranks in one table: mean, extremes, spread, ranks that stand out."""
    from ridgeline.report.views.trace_across import ranks_document
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
    show_answer(found, ranks_document(found), json=json)
    write_rows(out, KernelsOverRanks, [found], "kernels", json=json)


def trace_compare(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="The earlier trace, folder of traces, or glob, which B is compared with.",
        ),
    ],
    new: Annotated[str, typer.Argument(metavar="B", help="The later one, which is judged.")],
    by: Annotated[
        Literal["operator", "shape", "kernel"],
        typer.Option(help="Align by operator, the shape of its inputs, or kernel."),
    ] = "operator",
    threshold: Annotated[
        float, typer.Option(min=0.0, help="Smallest slowdown that matters: 0.02 is 2 %.")
    ] = 0.02,
    out: Out = None,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """What is new, gone, slower or faster in B; exit 3 when B is slower beyond noise.

    The traces of a folder are the ranks of one job, or, where they have the same rank or none,
    repeats of one run.
    """
    from ridgeline.report.views.trace_comparison import comparison_document, ranks_document
    from ridgeline.trace.compare.comparison import TraceComparison, check_grouping, compare_sides
    from ridgeline.trace.compare.sides import JobRepeats
    from ridgeline.trace.compare.times import rank_times

    check_grouping(by)
    check_out(out, [reference, new])
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
    rows = "kernels" if by == "kernel" else "operators"
    write_rows(out, TraceComparison, [whole], rows, json=json)
    if whole.verdict == "slower":
        raise Regression(f"{whole.file_b}: {whole.summary}")


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
