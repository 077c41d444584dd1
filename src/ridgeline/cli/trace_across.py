"""`ridgeline trace …`, the questions that span whole traces or several of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.output_options import Json, output_file
from ridgeline.cli.show import print_document, print_json, told, write_page
from ridgeline.cli.trace_files import Cache, Files, Window, ask
from ridgeline.errors import InputError, Regression
from ridgeline.trace.load import trace_files

WhatIf = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        metavar="CLASS=PERCENT",
        help="Shorten a class and recompute the window; may be given several times.",
    ),
]


def trace_critical_path(
    files: Files, what_if: WhatIf = None, cache: Cache = None, json: Json = False
) -> None:
    """The chain of launches, kernels and waits that made the run as long as it was; what-if."""
    from ridgeline.report.views.trace_across import critical_path_document
    from ridgeline.trace.critical_path import check_classes, job_path
    from ridgeline.trace.rank_path import rank_paths

    shorten = _shortened(what_if or [])
    check_classes(shorten)
    question = partial(rank_paths, shorten=shorten)
    path = job_path([one for each in ask(files, question, cache=cache) for one in each], shorten)
    if json:
        print_json(path)
    else:
        print_document(critical_path_document(path))


def trace_stragglers(files: Files, cache: Cache = None, json: Json = False) -> None:
    """Which rank arrives last at collectives, and how much of communication is waiting for it."""
    from ridgeline.report.views.trace_across import stragglers_document
    from ridgeline.trace.ranks import collectives_of_ranks
    from ridgeline.trace.stragglers import stragglers

    ranks = [one for each in ask(files, collectives_of_ranks, cache=cache) for one in each]
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


def trace_compare(
    reference: Annotated[str, typer.Argument(metavar="A", help="The trace to hold against.")],
    new: Annotated[str, typer.Argument(metavar="B", help="The trace to judge.")],
    by: Annotated[str, typer.Option(help="Align by `kernel` or `operator`.")] = "kernel",
    threshold: Annotated[
        float, typer.Option(min=0.0, help="Smallest slowdown that matters: 0.02 is 2 %.")
    ] = 0.02,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """What is new, gone, slower or faster in B; exit 3 when B is slower beyond noise."""
    from ridgeline.report.views.trace_across import comparison_document
    from ridgeline.trace.compare import check_grouping, compare_times, times_of_ranks

    check_grouping(by)
    question = partial(times_of_ranks, by=by)
    sides = [
        [one for each in ask([side], question, cache=cache) for one in each]
        for side in (reference, new)
    ]
    if len(sides[0]) != len(sides[1]):
        raise InputError(
            f"{reference} has {len(sides[0])} ranks and {new} has {len(sides[1])}; compare runs of "
            "the same number of ranks, or one rank of each"
        )
    found = [
        compare_times(a, b, threshold=threshold) for a, b in zip(sides[0], sides[1], strict=True)
    ]
    if json:
        print_json({"ranks": found})
    else:
        for one in found:
            print_document(comparison_document(one))
    slower = [one for one in found if one.verdict == "slower"]
    if slower:
        worst = max(slower, key=lambda one: one.ratio or 0.0)
        raise Regression(f"{worst.file_b}: {worst.summary}")


def trace_tree(
    files: Files,
    top: Annotated[int, typer.Option(min=1, help="How many rows to show.")] = 60,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Frames, operators and calls inside each other, with host and GPU time."""
    from ridgeline.report.views.trace_across import tree_document
    from ridgeline.trace.flame import flame_graph

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
    from ridgeline.trace.flame import folded

    stacks = ask(files, partial(folded, gpu=gpu), cache=cache)
    if json:
        print_json({"ranks": stacks})
    else:
        for lines in stacks:
            typer.echo("\n".join(lines))


def trace_export(
    files: Files,
    out: Annotated[Path, output_file("OUT.json[.gz]", "Where to; .gz compresses.")],
    cache: Cache = None,
    json: Json = False,
) -> None:
    """An annotated trace for Perfetto: counters, and the critical path as a track with flows."""
    from ridgeline.trace.export import export_chrome
    from ridgeline.trace.load import each_trace
    from ridgeline.trace.rank_path import rank_paths

    paths = [one for each in ask(files, rank_paths, cache=cache) for one in each]
    with told("--out", out):
        counts = export_chrome(each_trace(trace_files(files), cache=cache), paths, out)
    if json:
        print_json({"file": str(out), **counts})
    else:
        typer.echo(f"{out}: {counts['events']} events; open it at https://ui.perfetto.dev")


def trace_report(
    files: Files,
    html: Annotated[Path, output_file("OUT.html", "The page to write.")],
    window: Window = "trace",
    cache: Cache = None,
    json: Json = False,
) -> None:
    """One page for a browser: verdict, timeline, flame graph, and a table for every question."""
    from ridgeline.diagnose.trace_answers import rank_answers, trace_answers
    from ridgeline.report.views.trace_page import trace_page_document

    question = partial(rank_answers, window=window, ranks=len(trace_files(files)))
    ranks = ask(files, question, details=True, cache=cache)
    write_page("--html", html, trace_page_document(trace_answers(ranks)))
    size = html.stat().st_size
    if json:
        print_json({"file": str(html), "bytes": size})
    else:
        typer.echo(f"{html}: {size / 1e6:.1f} MB; open it in a browser")


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
