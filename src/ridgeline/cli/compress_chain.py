"""`ridgeline compress chain CHAIN.toml --out DIR`: schemes and trainings as one measured ledger."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.evaluate import Device, NoSpeed, bench_on
from ridgeline.cli.interrupts import ErrorsAsInterrupts
from ridgeline.cli.show import Json
from ridgeline.errors import Interrupted, Preempted, Regression

if TYPE_CHECKING:
    from ridgeline.records.recipe import Recipe
    from ridgeline.records.training_run import TrainingRun


def compress_chain(
    chain: Annotated[
        Path,
        typer.Argument(metavar="CHAIN.toml", help="Model, texts, and a [[stages]] table each."),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where model, ledger and report go.")],
    device: Device = "auto",
    no_speed: NoSpeed = False,
    json: Json = False,
) -> None:
    """Compress and train a model stage by stage, each a measured row; the same command goes on.

    Exit 3 where a stage lost more than its max_loss: the chain ends there, nothing is saved.
    """
    from ridgeline.cli.compress import save_beside
    from ridgeline.cli.show import progress, show_answer
    from ridgeline.compress.chain import TrainingDoor
    from ridgeline.compress.chain import compress_chain as run
    from ridgeline.models.quiet import quiet_libraries
    from ridgeline.records.compression_chain import read_chain
    from ridgeline.report.views.compress import compression_document
    from ridgeline.train.check import check

    wanted = read_chain(chain)
    bench = None if no_speed else bench_on(device)
    goes_on = f"; what is done is in {out}.partial, and the same command goes on from it"
    with quiet_libraries(), progress() as on_progress:
        training = TrainingDoor(
            check=check, run=lambda recipe, folder: _train(recipe, folder, on_progress)
        )
        try:
            with ErrorsAsInterrupts():
                ledger = run(
                    wanted,
                    chain.parent,
                    out,
                    training,
                    device=device,
                    bench=bench,
                    on_progress=on_progress,
                )
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted{goes_on}") from None
        except (Interrupted, Preempted) as error:
            raise type(error)(f"{re.split('[;:]', str(error))[0]}{goes_on}") from None
        if ledger.saved is not None:
            ledger, _ = save_beside(ledger, out, out, [], on_progress)
    show_answer(ledger, compression_document(ledger), json=json)
    if ledger.refused:
        raise Regression(
            f"nothing was saved: {ledger.refused}; the stages before it are in {out}.partial"
        )


def _train(recipe: Recipe, folder: Path, on_progress: Callable[[str], None]) -> TrainingRun:
    """Train a stage as `ridgeline train` does."""
    from ridgeline.cli.recipe_runs import LiveView
    from ridgeline.train.start import train_recipe
    from ridgeline.tune.stack import stack_environment

    stack = stack_environment(Path(recipe.run.stack)) if recipe.run.stack else nullcontext()
    with stack as environment:
        view = LiveView(folder, on_progress)
        return train_recipe(recipe, folder, view.refresh, environment)
