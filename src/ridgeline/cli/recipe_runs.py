"""What `train` and `launch` share: how a recipe's values are changed, how its run is watched."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.errors import InputError
from ridgeline.records.recipe_file import read_recipe
from ridgeline.records.training_run import LoggedStep, LogTail

Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="TABLE.KEY=VALUE", help="A value of the recipe to change; repeatable."
    ),
]


def usual_folder(recipe: Path) -> Path:
    """Where a run lives unless told: below where the command is, not among the recipes.

    >>> usual_folder(Path("recipes/gpt.toml"))
    PosixPath('runs/gpt')
    """
    return Path("runs") / recipe.stem


class LiveView:
    """Says how a run stands whenever its log has grown."""

    def __init__(
        self, folder: Path, on_progress: Callable[[str], None], *, pictures: bool | None = None
    ) -> None:
        """Watch the run in `folder`.

        Args:
            folder: Where the run lives.
            on_progress: Shows a text in place of the one before.
            pictures: Add the loss curve and the phases below the line; None: on a terminal.
        """
        self._folder = folder
        self._on_progress = on_progress
        self._pictures = sys.stderr.isatty() if pictures is None else pictures
        self._tail = LogTail(folder)
        self._lines: list[LoggedStep] = []
        self._steps: int | None = None

    def refresh(self) -> None:
        """Look at the log; says nothing where there is nothing new."""
        new = self._tail.read()
        if not new:
            return
        if self._steps is None:
            self._steps = _steps_wanted(self._folder)
        self._lines = [one for one in self._lines if one.step < new[0].step] + new
        from ridgeline.report.views.train import live_line, live_pictures

        text = live_line(self._lines[-1], self._steps)
        if self._pictures:
            text += "\n" + "\n".join(live_pictures(self._lines))
        self._on_progress(text)


def _steps_wanted(folder: Path) -> int | None:
    try:
        return read_recipe(folder / "recipe.toml").steps
    except InputError:
        # The view is no place to fail: the run itself has read its recipe.
        return None
