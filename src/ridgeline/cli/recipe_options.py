"""How commands take a recipe's values from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
