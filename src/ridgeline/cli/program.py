"""The `ridgeline` program as one typer group whose commands are imported when they are named.

A command has one word or two: `plan training` is a row of the table like any other, and
`ridgeline plan --help` lists the rows that begin with `plan`. A first word may be a command too:
`launch status` is a row beside `launch`. Help and completion read the table alone; the module of a
command is imported when the command is resolved. Completion is typer's own:
`ridgeline --install-completion`.
"""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ridgeline.cli.commands import COMMANDS, PANELS
from ridgeline.cli.help_page import draw_help
from ridgeline.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_HELP = ("-h", "--help")
_CONTEXT = {"help_option_names": list(_HELP)}


def build_program(*, begin: Callable[[], None] = lambda: None) -> TyperGroup:
    """Build the whole program; it calls `begin` when a command is imported and takes over."""

    class Program(_Words):
        before_the_command = staticmethod(begin)

    app = typer.Typer(
        cls=Program,
        context_settings=_CONTEXT,
        pretty_exceptions_enable=False,
        subcommand_metavar="COMMAND …",
        epilog="`ridgeline COMMAND --help` tells a command's options.",
    )
    app.callback()(ridgeline)
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return group


def ridgeline(
    *,
    version: Annotated[  # its callback has answered before this runs
        bool,
        typer.Option("--version", help="Print the version.", callback=lambda on: _version(on=on)),
    ] = False,
) -> None:
    """How far is your PyTorch script from what the hardware can do, why, and what closes it."""


def _version(*, on: bool) -> None:
    if on:
        from ridgeline.hardware.environment import installed_ridgeline

        typer.echo(f"ridgeline {installed_ridgeline()}")
        raise typer.Exit


def load_command(name: str) -> TyperCommand:
    """Import one command of the table and return it as typer reads it."""
    from ridgeline.cli.option_groups import with_flat_options

    module = importlib.import_module(COMMANDS[name][0])
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name, cls=_Command, context_settings=_CONTEXT)(
        with_flat_options(getattr(module, name.replace(" ", "_").replace("-", "_")))
    )
    command = typer.main.get_command(app)
    assert isinstance(command, TyperCommand)
    return command


class _Command(TyperCommand):
    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - it prints
        draw_help(self, ctx)


class _Words(TyperGroup):
    """The commands that begin with one word, or all of them.

    (`ctx` is the context of the click that typer carries, which is not public.)
    """

    first = ""
    before_the_command: Callable[[], None]

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - it prints
        draw_help(self, ctx)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        if self.first:
            return _second_words(self.first)
        order = list(PANELS)  # by panel; completion takes the same order
        return sorted(COMMANDS, key=lambda name: order.index(name.partition(" ")[0]))

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand:  # noqa: ARG002
        """Return what a list shows of a command, without importing it."""
        name = f"{self.first} {cmd_name}".strip()
        panel = PANELS[name.partition(" ")[0]]
        return TyperCommand(cmd_name, help=COMMANDS[name][1], rich_help_panel=panel)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if self.first and not ctx.resilient_parsing:
            word = args[0] if args else "-"
            if word.startswith("-") and word not in _HELP:
                known = " or ".join(
                    f"`ridgeline {self.first} {second}`" for second in _second_words(self.first)
                )
                raise InputError(f"{self.first} needs a second word: {known}")
        if args and not args[0].startswith("-"):
            # No option of ours is there; to read none, typer would import pydantic.
            self.params, self.add_help_option = [], False
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        word, *rest = args
        name = f"{self.first} {word}".strip()
        followers = [] if self.first else _second_words(word)
        if followers and (name not in COMMANDS or (rest and rest[0] in followers)):
            return word, self._of(word), rest
        if name in COMMANDS:
            from ridgeline.records.overwriting import one_command

            command = load_command(name)
            ctx.with_resource(one_command())
            self.before_the_command()
            return word, command, rest
        if ctx.resilient_parsing:
            return None, None, rest
        known = _second_words(self.first) if self.first else _first_words()
        raise InputError(f"no command {name!r}; {_nearest(word, known, self.first)}")

    def _of(self, word: str) -> TyperGroup:
        group = type(self)(
            name=word,
            help=f"The commands that begin with `{word}`.",
            context_settings=_CONTEXT,
            epilog=f"`ridgeline {word} COMMAND --help` tells its options.",
            subcommand_metavar="COMMAND …",
        )
        group.first = word
        return group

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete one word; at the beginning that is the first word of every command."""
        found = super().shell_complete(ctx, incomplete)
        first: dict[str, Any] = {}
        for item in found:
            item.value = item.value.partition(" ")[0]
            first.setdefault(item.value, item)
        return list(first.values())


def _first_words() -> list[str]:
    return list(dict.fromkeys(name.partition(" ")[0] for name in COMMANDS))


def _second_words(first: str) -> list[str]:
    """List the words that may follow `first`."""
    return [
        second for word, _, second in (name.partition(" ") for name in COMMANDS)
        if second and word == first
    ]  # fmt: skip


def _nearest(word: str, known: Iterable[str], first: str) -> str:
    before = f"ridgeline {first}".strip()
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean `{before} {near[0]}`?" if near else f"see `{before} --help`"
