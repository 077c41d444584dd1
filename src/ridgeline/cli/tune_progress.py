"""What `tune` shows on stderr while it works: rows as they come, what is asked, time left.

On a terminal a picture that is drawn anew; elsewhere a line for each thing said, with the time
since the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from ridgeline.cli.durations import duration_text
from ridgeline.records import Ledger

OnProgress = Callable[[str], None]
Show = Callable[[Ledger], None]


@contextmanager
def watching(begun: float, budget_seconds: float) -> Iterator[tuple[OnProgress, Show]]:
    """Gives whom to tell what is under way, and whom to show the ledger as it grows.

    `begun` is when the budget began to run, on `monotonic`'s clock.
    """
    console = Console(stderr=True)
    if console.is_terminal:
        picture = _Picture(begun, budget_seconds)
        with Live(picture, console=console, refresh_per_second=2, transient=True):
            yield picture.on_progress, picture.show
        return

    def on_progress(text: str) -> None:
        since = f"{monotonic() - begun:4.0f} s  "
        console.print(since + text, highlight=False, markup=False, soft_wrap=True)

    yield on_progress, _not_drawn


def _not_drawn(ledger: Ledger) -> None:
    """Where there is no terminal, what is said of each row is enough."""


class _Picture:
    """The ledger so far, and beneath it the question and the time."""

    def __init__(self, begun: float, budget_seconds: float) -> None:
        self._begun = begun
        self._budget_seconds = budget_seconds
        self._text = "starting"
        self._ledger: Ledger | None = None

    def on_progress(self, text: str) -> None:
        """What is under way."""
        self._text = text

    def show(self, ledger: Ledger) -> None:
        """The rows so far."""
        self._ledger = ledger

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from ridgeline.report.terminal import TableView
        from ridgeline.report.views.tune import ledger_table

        if self._ledger is not None and self._ledger.rows:
            yield TableView(ledger_table(self._ledger))
            yield Text()
        yield Text(self._text, no_wrap=True, overflow="ellipsis")
        spent = monotonic() - self._begun
        left = max(self._budget_seconds - spent, 0.0)
        yield Text(
            f"{duration_text(round(spent))} gone, at most {duration_text(round(left))} left",
            style="dim",
        )
