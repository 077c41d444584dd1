"""`ridgeline launch status | logs | cancel NAME`: runs that were launched from here."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ridgeline.cli.show import Json

NAME = Annotated[
    str, typer.Argument(metavar="NAME", help="The run, as `ridgeline launch` called it.")
]


def launch_status(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The run to show. Default: all of them.")
    ] = "",
    json: Json = False,
) -> None:
    """Say how a run stands, and in one sentence why it waits."""
    from ridgeline.cli.show import show_answer
    from ridgeline.launch.places import find, recovered, status
    from ridgeline.launch.remembered import Remembered
    from ridgeline.records.state_folder import state_folder
    from ridgeline.report.views.launch import runs_document, status_document

    remembered = Remembered(state_folder("launch"))
    if name:
        found = status(find(name, remembered))
        show_answer(found, status_document(found), json=json)
        return
    runs = [run for one in remembered.all() if (run := recovered(one, remembered)) is not None]
    show_answer(runs, runs_document(runs), json=json)


def launch_logs(
    name: NAME,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on until the run has ended.")
    ] = False,
    json: Json = False,
) -> None:
    """Show what all ranks say, ordered by time; of what is there already, the first error first."""
    from ridgeline.cli.show import print_json
    from ridgeline.launch.merge import first_error
    from ridgeline.launch.places import find, log_lines
    from ridgeline.launch.remembered import Remembered
    from ridgeline.records.state_folder import state_folder

    remembered = Remembered(state_folder("launch"))
    run = find(name, remembered)
    past = list(log_lines(run, remembered, following=False)) if not follow else []
    error = first_error(past)
    if json:
        print_json({"first_error": error, "lines": past})
        return
    if error is not None:
        sys.stdout.write(f"first error: {error.prefixed}\n")
    for line in log_lines(run, remembered, following=True) if follow else past:
        sys.stdout.write(f"{line.prefixed}\n")
        sys.stdout.flush()


def launch_cancel(name: NAME, json: Json = False) -> None:
    """End a run and take away what belongs to it; its checkpoints stay."""
    from ridgeline.cli.show import print_json
    from ridgeline.launch.places import cancel, find
    from ridgeline.launch.remembered import Remembered
    from ridgeline.records.state_folder import state_folder

    remembered = Remembered(state_folder("launch"))
    run = cancel(find(name, remembered), remembered)
    if json:
        print_json(run)
    else:
        sys.stdout.write(f"{run.name}: cancelled; what it saved is in {run.folder}\n")
