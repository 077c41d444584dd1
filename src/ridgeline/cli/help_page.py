"""The pages of `--help`, with every name whole and its sentence beside it, however narrow.

typer's own page gives names, negations and types a column each, which leaves a sentence sixteen
signs of a terminal's eighty and cuts the names. Here there are two columns, and a name that is too
long for the first one stands on a line of its own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.text import Text

_WIDEST_NAME = 28
_GAP = 2
_FRAME = 4
_TYPES = {"int": "N", "float": "NUMBER", "str": "TEXT", "path": "PATH"}
"""What typer calls a type → what stands for a value of it."""
_TYPE = re.compile(r" <(?:list\[)?(\w+)(?: range)?\]?>$")
_CHOICES = re.compile(r"<([^<>]+)>$")
_FACTS = re.compile(
    r"(?P<sentence>.*?) *(?P<facts>\[(env var|default|required|[-\d.]*<?=?x)[^\[]*\])"
)
"""A sentence, and what typer adds: `[default: 8; x>=1]`."""
_BETWEEN = re.compile(r"([-\d.]+)<=x<=([-\d.]+)")
_AT_LEAST = re.compile(r"x>=([-\d.]+)")


def draw_help(command: Any, ctx: Any) -> None:
    """Print how a command is called and what it does; arguments, options and commands by panel.

    Args:
        command: A command of typer's, or a group of them.
        ctx: The context in which it is asked.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console()
    console.print()
    _print_indented(console, Text(f"Usage: {_usage(command, ctx)}", style="bold"))
    for paragraph in paragraphs(command.help or ""):
        _print_indented(console, Text(paragraph))
    panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for panel, name, sentence in (*_parameters(command, ctx), *_commands(command, ctx)):
        panels.setdefault(panel, []).append((name, sentence))
    longest = max(len(name) for rows in panels.values() for name, _ in rows)
    names = min(longest, _WIDEST_NAME, console.width // 2)
    for title, rows in panels.items():
        if rows:
            _print_panel(console, title, rows, names)
    if command.epilog:
        _print_indented(console, Text(command.epilog))


def paragraphs(text: str) -> list[str]:
    r"""The paragraphs of a docstring, each on one line.

    >>> paragraphs("Do it.\n\n    Then rest\n    a while.")
    ['Do it.', 'Then rest a while.']
    """
    return [" ".join(part.split()) for part in text.strip().split("\n\n") if part]


def in_plain_words(facts: str) -> str:
    """What typer says of an option's values, as one would say it.

    >>> in_plain_words("[default: 8; x>=1]"), in_plain_words("[0<=x<=65535]")
    ('[default: 8; 1 or more]', '[0 to 65535]')
    """
    return _AT_LEAST.sub(r"\1 or more", _BETWEEN.sub(r"\1 to \2", facts))


def _usage(command: Any, ctx: Any) -> str:
    words = [ctx.command_path, "[OPTIONS]"]
    for one in command.get_params(ctx):
        if one.param_type_name == "argument":
            name = _argument_name(one)
            words.append(name if one.required else f"[{name}]")
    return " ".join([*words, getattr(command, "subcommand_metavar", None) or ""]).rstrip()


def _parameters(command: Any, ctx: Any) -> Iterator[tuple[str, str, str]]:
    """The panel, name and sentence of each argument and option that is shown."""
    for one in command.get_params(ctx):
        record = one.get_help_record(ctx)
        if record is None:
            continue
        is_argument = one.param_type_name == "argument"
        panel = getattr(one, "rich_help_panel", None)
        if not isinstance(panel, str):
            panel = "Arguments" if is_argument else "Options"
        name = _argument_name(one) if is_argument else _option_name(record[0])
        yield panel, name, _sentence(record[1], one)


def _commands(command: Any, ctx: Any) -> Iterator[tuple[str, str, str]]:
    for name in command.list_commands(ctx) if hasattr(command, "list_commands") else ():
        one = command.get_command(ctx, name)
        yield one.rich_help_panel, name, one.help


def _argument_name(argument: Any) -> str:
    name: str = argument.metavar or argument.name
    return name if argument.nargs == 1 or name.endswith(("…", "...")) else f"{name}…"


def _option_name(record: str) -> str:
    """An option with what stands for its value: `--port N`, `--on local|ray`."""
    named = _TYPE.sub(lambda found: f" {_TYPES.get(found[1].lower(), found[1].upper())}", record)
    return _CHOICES.sub(r"\1", named)


def _sentence(said: str, param: Any) -> str:
    """What an option is for, and its default; a duration as one would write it."""
    if param.metavar == "DURATION" and isinstance(param.default, float):
        from ridgeline.cli.durations import duration_text

        default = duration_text(param.default)
        said = said.replace(f"[default: {param.default}", f"[default: {default}")
    return said


def _print_indented(console: Console, text: Text) -> None:
    """Print a paragraph and an empty line; no line ends in blanks, which a pipe would keep."""
    for line in text.wrap(console, console.width - 2):
        line.rstrip()
        console.print(" ", line, sep="")
    console.print()


def _print_panel(console: Console, title: str, rows: list[tuple[str, str]], names: int) -> None:
    """Print rows of names and sentences; the names' column is so many signs wide."""
    from rich.panel import Panel
    from rich.text import Text

    lines: list[Text] = []
    for name, sentence in rows:
        left, beside = Text(name, style="cyan"), console.width - _FRAME - names - _GAP
        right = list(_styled(sentence).wrap(console, beside))
        if len(name) > names:
            lines += left.wrap(console, console.width - _FRAME)
        else:
            left.pad_right(names + _GAP - len(name))
            lines.append(left + right.pop(0))
        lines += [Text(" " * (names + _GAP)) + one for one in right]
    for line in lines:
        line.rstrip()
    body = Text("\n").join(lines)
    console.print(Panel(body, title=title, title_align="left", border_style="dim"))


def _styled(sentence: str) -> Text:
    from rich.text import Text

    found = _FACTS.fullmatch(sentence)
    if found is None:
        return Text(sentence)
    said = f"{found['sentence']} " if found["sentence"] else ""
    return Text.assemble(said, (in_plain_words(found["facts"]), "dim"))
