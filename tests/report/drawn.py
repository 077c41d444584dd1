"""Documents as a terminal shows them, for tests to read."""

from __future__ import annotations

from rich.console import Console

from ridgeline.report.document import ReportDocument
from ridgeline.report.terminal import terminal_view


def drawn(document: ReportDocument, width: int = 100) -> str:
    """The document in a terminal of so many columns, without colours."""
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(terminal_view(document), crop=False)
    return capture.get()
