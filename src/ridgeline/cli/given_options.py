"""Which options were typed, so that one that means nothing for this model can be refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import typer

from ridgeline.errors import InputError

T = TypeVar("T")


def typed_options(context: typer.Context) -> dict[str, str]:
    """Parameter → its option, of those that stand on the command line, in the command's order."""
    found = {}
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE" and parameter.name:
            found[parameter.name] = max(parameter.opts, key=len)
    return found


def refuse_typed(context: typer.Context, meaningless: Mapping[str, str], why: str) -> None:
    """Refuse the first typed option that is among `meaningless` (parameter → what to do).

    Raises:
        InputError: One was typed; the message is its name, `why` and what to do.
    """
    for name, option in typed_options(context).items():
        if name in meaningless:
            raise InputError(f"{option}: {why}; {meaningless[name]}")


def needed(option: str, value: T | None) -> T:
    """The value of an option that this model cannot do without.

    Raises:
        InputError: It was not given.
    """
    if value is None:
        raise InputError(f"Missing option '{option}'.")
    return value
