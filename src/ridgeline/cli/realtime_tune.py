"""`ridgeline realtime tune pipeline.py`: stack cures of a pipeline, prove each, write them down."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.durations import duration_option
from ridgeline.cli.show import Json

REPORT_NAME = "report.html"


def realtime_tune(
    pipeline: Annotated[
        str,
        typer.Argument(
            metavar="PIPELINE.py[:NAME]", help="The file that declares the pipeline, and its name."
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for everything that is written.")
    ] = Path("ridgeline-realtime"),
    budget: Annotated[
        float, duration_option("Wall time for everything, the last proof included.")
    ] = 900.0,
    threshold: Annotated[
        float, typer.Option(help="Keep what is faster by more than this beyond doubt: 0.02 is 2 %.")
    ] = 0.02,
    may_fall: Annotated[
        float, typer.Option(help="Share by which a figure of merit of the pipeline may fall.")
    ] = 0.01,
    frames: Annotated[
        int, typer.Option(help="Frames of the first sensor that are recorded and compared.")
    ] = 48,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="CURE", help="Try only this cure; repeatable."),
    ] = None,
    json: Json = False,
) -> None:
    """Tune a pipeline by cures that are measured side by side, compared, and kept if they hold.

    Writes ledger.json, report.html, stack.toml and tuned.py (the pipeline with what was kept, for
    `ridgeline realtime run`) into the folder.
    """
    from ridgeline.cli.show import progress, show_answer
    from ridgeline.realtime.tuning.asked import PipelineTuning
    from ridgeline.realtime.tuning.job import LEDGER_NAME, tune_pipeline
    from ridgeline.records.store import write_atomically, write_record
    from ridgeline.report.page import draw_page
    from ridgeline.report.views.realtime_tune import tuning_document

    job = PipelineTuning(
        pipeline=pipeline,
        out=out,
        budget_seconds=budget,
        threshold=threshold,
        may_fall=may_fall,
        only=tuple(only or ()),
        frames=frames,
    )
    with progress() as on_progress:
        ledger = tune_pipeline(job, on_progress)
    from msgspec.structs import replace

    ledger = replace(ledger, report=str(out / REPORT_NAME))
    document = tuning_document(ledger)
    write_atomically(out / REPORT_NAME, draw_page(document).encode())
    write_record(out / LEDGER_NAME, ledger)
    show_answer(ledger, document, json=json)
