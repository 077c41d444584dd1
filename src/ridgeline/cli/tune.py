"""`ridgeline tune -- script.py args…`: stack cures, prove each, write down what held."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.durations import duration_option, duration_text
from ridgeline.cli.show import Json

REPORT_NAME = "report.html"
PROBE_SHARE = 0.05
"""Share of the budget after which a probe of the machine leaves out what is left."""


def tune(
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- SCRIPT [ARGS]…", help="The script and its arguments, after --."),
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for everything that is written.")
    ] = Path("ridgeline-tune"),
    budget: Annotated[
        float, duration_option("Wall time for everything, the last proof included.")
    ] = 900.0,
    threshold: Annotated[
        float, typer.Option(help="Keep what is faster by more than this beyond doubt: 0.01 is 1 %.")
    ] = 0.01,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="TECHNIQUE", help="Try only this technique; repeatable."),
    ] = None,
    patch: Annotated[
        bool,
        typer.Option(
            "--patch", help="Also write the stack as a diff of the script, proved like it."
        ),
    ] = False,
    period: Annotated[
        float | None, duration_option("Also call the result at this period, as frames come.")
    ] = None,
    usd_per_hour: Annotated[
        float | None,
        typer.Option(
            metavar="USD",
            help="Price per hour of all that runs the script. Default: the device's on record.",
        ),
    ] = None,
    steps_to_train: Annotated[
        float | None,
        typer.Option(help="Steps of the whole run: adds its time and cost, row by row."),
    ] = None,
    run_hours: Annotated[
        float | None,
        typer.Option(
            help="In place of --steps-to-train: hours of the whole run as the script is now."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Tune an unmodified script: each technique measured in turn with the stack, and verified.

    Writes ledger.json, stack.toml (for `ridgeline run`) and report.html into the folder. An
    interrupted job resumes when the same command is given again.
    """
    from time import monotonic

    begun = monotonic()

    from ridgeline.cli.tune_progress import watching
    from ridgeline.errors import Interrupted
    from ridgeline.measure.live.command import resolve
    from ridgeline.tune.billing import RunTerms
    from ridgeline.tune.job import TuneJob
    from ridgeline.tune.tuner import tune as run_job

    job = TuneJob(
        command=command,
        out=out,
        budget_seconds=budget,
        threshold=threshold,
        only=tuple(only or ()),
        patch=patch,
        terms=RunTerms(
            usd_per_hour=usd_per_hour, steps_to_train=steps_to_train, run_hours=run_hours
        ),
        period_seconds=period,
    )
    resolve(command)
    with watching(begun, budget) as (on_progress, show):
        on_progress(
            f"{' '.join(command)}: at most {duration_text(budget)}; everything goes into {out}"
        )
        from ridgeline.measure.probe import ceilings

        peaks = ceilings(
            quick=True,
            within_seconds=PROBE_SHARE * budget,
            on_progress=lambda what, _: on_progress(f"probing this machine: {what}"),
        )
        try:
            ledger = run_job(job, ceilings=peaks, on_progress=on_progress, show=show, begun=begun)
        except KeyboardInterrupt:
            raise Interrupted(
                f"interrupted; what was measured is in {out}, and the same command goes on from it"
            ) from None
    from msgspec.structs import replace

    from ridgeline.cli.show import show_answer
    from ridgeline.records.store import write_atomically, write_record
    from ridgeline.report.page import draw_page
    from ridgeline.report.views.tune import ledger_document, patch_header

    ledger = replace(ledger, report=str(out / REPORT_NAME))
    write_atomically(out / REPORT_NAME, draw_page(ledger_document(ledger)).encode())
    write_record(out / "ledger.json", ledger)
    if ledger.patch is not None:
        diff = Path(ledger.patch)
        write_atomically(diff, patch_header(ledger).encode() + diff.read_bytes())
    show_answer(ledger, ledger_document(ledger), json=json)
