"""Options of `ridgeline serve` that say what the model is called and what it comes with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

ServedModelName = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="The model's name in the API; repeatable, replies say the first. Default: the"
        " folder's name.",
    ),
]
TokenizerFolder = Annotated[
    str | None,
    typer.Option(
        "--tokenizer", metavar="MODEL", help="Whose tokenizer it is. Default: the model's own."
    ),
]
Revision = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The branch, tag or commit of a hub id. Default: main."),
]
ToolCallParser = Annotated[
    str,
    typer.Option(
        metavar="FAMILY", help="How the model writes tool calls; auto: as its template does."
    ),
]


def names_of(model: str, given: Sequence[str] | None) -> tuple[str, ...]:
    """The names that requests may call the model by.

    Raises:
        InputError: One is empty, or given twice.
    """
    if not given:
        return (Path(model).resolve().name if Path(model).exists() else model,)
    for name in given:
        if not name or given.count(name) > 1:
            raise InputError(
                f"--served-model-name {name!r}: give each name once, none of them empty"
            )
    return tuple(given)
