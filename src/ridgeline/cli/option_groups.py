"""Options that several commands share: a record of them is one parameter of each command.

A command takes a group as it takes any other value. `with_flat_options` makes of it the function
that typer reads, in which every option of a group stands by itself. Which of them were typed is
asked here, too, so that one that means nothing for a model can be refused.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
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


class OptionGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Values of options that go together; each field is an option with its default."""


def with_flat_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the options of its groups as parameters of its own.

    Args:
        command: Its parameters are options as typer takes them, or groups, which have no default.

    Returns:
        A function that fills the groups and calls `command`; without groups `command` itself.
    """
    hints = typing.get_type_hints(command, include_extras=True)
    parameters = inspect.signature(command).parameters
    groups = {name: hints[name] for name in parameters if _is_group(hints[name])}
    if not groups:
        return command
    flat = [
        one for name, own in parameters.items()
        for one in (_options(hints[name]) if name in groups
                    else (own.replace(annotation=hints[name], kind=own.KEYWORD_ONLY),))
    ]  # fmt: skip

    @functools.wraps(command)
    def call(**given: Any) -> Any:
        for name, group in groups.items():
            given[name] = group(**{field: given.pop(field) for field in group.__struct_fields__})
        return command(**given)

    call.__annotations__ = {one.name: one.annotation for one in flat}
    call.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]  # inspect reads it
    return call


def _is_group(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, OptionGroup)


def _options(group: type[OptionGroup]) -> Iterator[inspect.Parameter]:
    hints = typing.get_type_hints(group, include_extras=True)
    for own in inspect.signature(group).parameters.values():
        yield own.replace(annotation=hints[own.name])
