"""The name of a kernel, a file or a line in a table, on a terminal and where there is none.

On a terminal a name that is too long is cut to one line: a path loses its beginning, for what it
ends with tells files apart, any other name its end. Elsewhere nothing is cut, for whoever reads a
log cannot make it wider: a name breaks between its parts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

LONGEST_PART = 24
"""Columns that a part of a name keeps; a longer one is broken."""
_PART = re.compile(r"[(<]*(?:(?!::)[^\s/_,(<])+(?:::|[\s/_,]+)?|::|[\s/_,(<]+")
_PATH = re.compile(r"[^\s<(:]*/[^\s/]")


@dataclass(frozen=True, slots=True)
class NameCell:
    """A name that fits into whatever width it gets."""

    name: str
    cut: bool
    """On one line, with an ellipsis for what is left out."""

    @property
    def text(self) -> Text:
        """The name as it is, whole."""
        return Text(self.name, no_wrap=True, overflow="ignore")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        parts = [cell_len(part) for part in _parts(self.name)]
        least = 1 if self.cut else min(LONGEST_PART, max(parts, default=1))
        return Measurement(least, cell_len(self.name)).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.cut:
            yield Text(shortened_name(self.name, options.max_width), no_wrap=True)
            return
        for line in broken_name(self.name, options.max_width):
            yield Text(line, no_wrap=True)


def _parts(name: str) -> list[str]:
    return [found[0] for found in _PART.finditer(name)]


def shortened_name(name: str, width: int) -> str:
    """The name in so many columns, what tells it apart kept.

    >>> shortened_name("runs/today/rank0.json.gz", 16), shortened_name("sgemm_128x64_nn", 9)
    ('…/rank0.json.gz', 'sgemm_12…')
    """
    if cell_len(name) <= width:
        return name
    if _PATH.match(name.lstrip()):
        indent = name[: len(name) - len(name.lstrip())]
        tail = name[len(name) - max(0, width - 1 - len(indent)) :]
        folder = tail.find("/")
        if 0 <= folder < len(tail) // 2:
            tail = tail[folder:]
        return f"{indent}…{tail}"
    return f"{name[: max(0, width - 1)]}…"


def broken_name(name: str, width: int) -> list[str]:
    """The name in lines of so many columns, broken between its parts where that is possible.

    >>> broken_name("cutlass_75_tensorop_s1688gemm_align1", 16)
    ['cutlass_75_', 'tensorop_', 's1688gemm_align1']
    >>> broken_name("  one::two", 8)
    ['  one::', '   two']
    """
    lead = len(name) - len(name.lstrip())
    indent = " " * (lead + 1 if lead and lead + 1 < width // 2 else 0)
    lines = [""]
    for part in _parts(name):
        rest = part
        if cell_len((lines[-1] + rest).rstrip()) > width and lines[-1].strip():
            lines.append(indent)
        while cell_len((lines[-1] + rest).rstrip()) > width:
            room = max(1, width - len(lines[-1]))
            lines[-1] += rest[:room]
            rest = rest[room:]
            lines.append(indent)
        lines[-1] += rest
    return [line.rstrip() for line in lines if line.strip()] or [""]
