"""`ridgeline train recipe.toml` runs a recipe on this machine."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.recipe_runs import Changes, LiveView, usual_folder
from ridgeline.cli.show import Json

_SAID = {"launched", "ready", "checkpoint", "drifted", "hung", "rolled_back"}
"""Events whose notes are worth a line while the run goes."""


def train(
    recipe: Annotated[
        Path,
        typer.Argument(
            metavar="RECIPE.toml", help="A recipe, as `plan training --write` makes one."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the run lives. Default: runs/, the recipe's name."),
    ] = None,
    change: Changes = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Delete the run's checkpoints, begin at step 0.")
    ] = False,
    nodes: Annotated[
        str | None,
        typer.Option(metavar="FEWEST:MOST", help="Machines that share the run; on each of them."),
    ] = None,
    rendezvous: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="With --nodes: who leads, and a free port."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A run with fewer processes: also say how it scales."),
    ] = None,
    json: Json = False,
) -> None:
    """Train what the recipe says, on as many processes as its layout has."""
    from ridgeline.cli.show import print_document, print_json, progress, say
    from ridgeline.errors import InputError
    from ridgeline.records.recipe_file import anchored, read_recipe
    from ridgeline.records.store import read_record
    from ridgeline.records.training_run import TrainingRun, read_log
    from ridgeline.report.views.train import run_document
    from ridgeline.train.folder import RESULT
    from ridgeline.train.nodes import Nodes
    from ridgeline.train.start import train_recipe
    from ridgeline.train.survive.events import event_tail
    from ridgeline.train.watch.scaling import scaling_line
    from ridgeline.tune.stack import stack_environment

    wanted = anchored(read_recipe(recipe, change or []), recipe.parent)
    folder = out or usual_folder(recipe)
    if (nodes is None) != (rendezvous is None):
        raise InputError("--nodes and --rendezvous go together: how many machines, and who leads")
    machines = Nodes.read(nodes, rendezvous) if nodes and rendezvous else None
    single = read_record(against / RESULT, TrainingRun) if against else None
    stack = stack_environment(Path(wanted.run.stack)) if wanted.run.stack else nullcontext()
    if out is None:
        say(f"the run lives in {folder}; --out FOLDER puts it elsewhere", err=True)
    with progress() as report_progress, stack as environment:
        view, events = LiveView(folder, report_progress), event_tail(folder)
        events.read()  # of earlier starts

        def refresh() -> None:
            for event in events.read():
                if event.note and event.kind in _SAID:
                    say(event.note, err=True)
            view.refresh()

        run = train_recipe(wanted, folder, refresh, environment, nodes=machines, fresh=fresh)
    if json:
        print_json(run)
    else:
        losses = [line.loss for line in read_log(folder)]
        print_document(run_document(run, losses, folder))
    if single is not None:
        say(scaling_line(run, single), err=json)
