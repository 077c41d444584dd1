"""`ridgeline bisect GOOD BAD -- command…`: the commit that made a command slower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.show import Json


def bisect(
    good: Annotated[str, typer.Argument(metavar="GOOD", help="A commit that was fast.")],
    bad: Annotated[str, typer.Argument(metavar="BAD", help="A later one that is slow.")],
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND…", help="What is run and timed, after --.")
    ],
    repo: Annotated[
        Path, typer.Option(metavar="DIR", help="The repository, or the folder in it to run in.")
    ] = Path(),
    metric: Annotated[
        str,
        typer.Option(metavar="FIGURE", help="Figure of each run: median, mean, p99, p99/p50, …"),
    ] = "median",
    threshold: Annotated[
        float, typer.Option(help="Smallest slowdown worth a search: 0.05 is 5 %.")
    ] = 0.05,
    rounds: Annotated[
        int, typer.Option(help="Most runs of a commit beside the good one's; fewer where clear.")
    ] = 18,
    link: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE|DIR", help="Untracked data that every checkout shall see."),
    ] = None,
    json: Json = False,
) -> None:
    """Find the commit that made a command slower, by interleaved runs in checkouts of its own.

    The steps of a script (train.py, -m module) are timed as by doctor; of any other command the
    record or the seconds that it prints count, else its wall time. Your checkout is not touched.
    """
    from ridgeline.cli.show import progress, show_answer
    from ridgeline.errors import RidgelineError
    from ridgeline.measure.bisect.search import Question
    from ridgeline.measure.bisect.search import bisect as search
    from ridgeline.measure.statistics.metric import parse_metric
    from ridgeline.report.views.bisect import bisection_document, unproven

    question = Question(
        good=good,
        bad=bad,
        command=command,
        repository=repo,
        metric=parse_metric(metric),
        threshold=threshold,
        most_rounds=rounds,
        linked=tuple(link or ()),
    )
    with progress() as on_progress:
        found = search(question, on_progress=on_progress)
    show_answer(found, bisection_document(found), json=json)
    why = unproven(found)
    if why is not None:
        raise RidgelineError(why)
