"""Traces as trees, stacks, pages and files for other programs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline import quantity
from ridgeline.cli.show import Json, output_file, print_document, print_json, say, told, write_page
from ridgeline.cli.trace_files import (
    Cache,
    Files,
    Out,
    Window,
    ask,
    check_out,
    named_files,
    write_rows,
)
from ridgeline.report.document import Lines, ReportDocument

if TYPE_CHECKING:
    from ridgeline.diagnose.trace_answers import RankAnswers, TraceAnswers


def trace_tree(
    files: Files,
    top: Annotated[int, typer.Option(min=1, help="How many rows to show.")] = 60,
    out: Out = None,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Frames, operators and calls inside each other, with host and GPU time."""
    from ridgeline.report.views.trace_across import tree_document
    from ridgeline.trace.pictures.flame import TreeRow, rank_tree, tree_rows

    check_out(out, files)
    trees = ask(files, rank_tree, cache=cache)
    if json:
        print_json({"ranks": [tree.roots for tree in trees]})
    else:
        for tree in trees:
            print_document(tree_document(tree.roots, top))
    write_rows(out, TreeRow, [row for tree in trees for row in tree_rows(tree)], json=json)


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
        say(f"{html}: {quantity.memory(size)}; open it in a browser")


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
