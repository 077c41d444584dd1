"""`ridgeline realtime simulate` says what a pipeline would do, by the logic that runs it."""

from __future__ import annotations

from typing import Annotated

import typer

from ridgeline.cli.durations import duration_option, parse_share
from ridgeline.cli.show import Html, Json


def realtime_simulate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN.json|TABLE.toml|NAME",
            help="A run of `realtime run --out`, a table of stage times, or one that is shipped.",
        ),
    ],
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CHANGE",
            help="A change, as 'backbone x0.6' or rate=36Hz; repeatable: each alone, and all.",
        ),
    ] = None,
    meet: Annotated[
        float | None, duration_option("Find what each stage may take to meet this age.")
    ] = None,
    max_miss: Annotated[
        float,
        typer.Option(
            parser=parse_share, metavar="SHARE", help="Frames that may miss --meet, as 0.1%."
        ),
    ] = 0.001,
    frames: Annotated[
        int | None,
        typer.Option(help="Frames of the first sensor. Default: the run's, 2,000 at most."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of frames drawn beyond those measured.")] = 0,
    html: Html = None,
    json: Json = False,
) -> None:
    """Simulate a pipeline as it is and as it could be: ages, misses, losses, targets."""
    from ridgeline.cli.show import progress, show_answer
    from ridgeline.plan.realtime.answer import read_source, simulate_realtime
    from ridgeline.report.views.realtime_simulation import realtime_simulation_document

    with progress() as on_progress:
        found = simulate_realtime(
            read_source(source, seed),
            what_if=what_if or (),
            meet_seconds=meet,
            max_miss=max_miss,
            frames=frames,
            seed=seed,
            on_progress=on_progress,
        )
    show_answer(found, realtime_simulation_document(found), json=json, html=html)
