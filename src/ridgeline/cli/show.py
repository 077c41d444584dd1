"""What every command does at the rim: progress on stderr, one JSON document on stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
from rich.console import Console, RenderableType


def print_json(document: object) -> None:
    """Exactly one JSON document on stdout."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n")


def print_view(view: RenderableType) -> None:
    """A table or a text on stdout, as wide as the terminal."""
    Console().print(view)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """What is under way, on stderr: one live line on a terminal, a line each where it is not."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True)
        return
    with console.status("starting") as status:
        yield lambda text: status.update(text.replace("[", "\\["))
