"""How commands take a recipe's values from the command line."""

from __future__ import annotations

from typing import Annotated

import typer

Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="TABLE.KEY=VALUE", help="A value of the recipe to change; repeatable."
    ),
]
