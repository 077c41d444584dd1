"""What every command does at the rim: progress on stderr, one JSON document on stdout.

A file is written into a folder that is there, and never over one that the command reads; both are
looked at before anything is read. A folder that a command fills (`compress --out`, `train --out`)
is made, with those above it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from ridgeline.errors import InputError, in_words
from ridgeline.records.overwriting import note_output
from ridgeline.records.store import write_atomically
from ridgeline.visible import visible_text

if TYPE_CHECKING:
    from ridgeline.report.document import ReportDocument


def announce(parameter: typer.CallbackParam, value: Any) -> Any:
    """Say that an option's file will be written, before anything is read.

    Raises:
        InputError: It is read by this command, or its folder is not there.
    """
    if value is not None:
        option, path = parameter.opts[0], Path(value)
        _need_folder(option, path)
        note_output(option, path)
    return value


def _need_folder(option: str, path: Path) -> None:
    folder = path.parent
    try:
        if folder.is_dir():
            return
        what = "is no folder" if folder.exists() else "is not there"
    except OSError as error:
        what = in_words(error)
    raise InputError(f"{option} {path}: the folder {folder} {what}; make it first, or name another")


def output_file(name: str, help: str) -> Any:  # noqa: A002 - as typer has it
    """An option that names a file to write; every one is made here."""
    return typer.Option(metavar=name, help=help, callback=announce)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Html = Annotated[Path | None, output_file("FILE", "Also write a page with the plots.")]


def print_json(document: object) -> None:
    """Exactly one JSON document on stdout; what would steer a terminal is escaped as JSON does."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=1).decode()
    sys.stdout.write(visible_text(text) + "\n")


def say(text: str, *, err: bool = False) -> None:
    """One line, or several, on stdout or stderr."""
    print(visible_text(text), file=sys.stderr if err else sys.stdout, flush=True)


def write_text(option: str, path: Path, text: str) -> None:
    """What an option asks to write to a file; an error names both."""
    with told(option, path):
        write_atomically(path, text.encode())


@contextmanager
def told(option: str, path: Path) -> Iterator[None]:
    """Within, an option's file is written; an error names both."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be written: {in_words(error)}") from None


def print_document(document: ReportDocument) -> None:
    """What a command found, on stdout, as wide as the terminal; in a pipe no word is cut."""
    from ridgeline.report.terminal import terminal_view

    Console().print(terminal_view(document), crop=False)


def write_page(option: str, path: Path, document: ReportDocument) -> None:
    """What a command found, as a page for a browser."""
    from ridgeline.report.page import draw_page

    write_text(option, path, draw_page(document))


def show_answer(
    found: object, document: ReportDocument, *, json: bool, html: Path | None = None
) -> None:
    """What a command found, as its output options say: a page, and JSON or the terminal's view."""
    if html is not None:
        write_page("--html", html, document)
    if json:
        print_json(found)
    else:
        print_document(document)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """What is under way, on stderr: one live line on a terminal, a line each where it is not."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: say(text, err=True)
        return
    with console.status("starting") as status:
        yield lambda text: status.update(Text(visible_text(text)))
