"""Launched runs in the terminal: the price before, and how a run stands."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.text import Text

from ridgeline import quantity
from ridgeline.records.launched_run import LaunchedRun, RunStatus
from ridgeline.report.fitted_table import FittedTable

_STYLES = {
    "pending": "yellow",
    "running": "green",
    "restarting": "yellow",
    "done": "green",
    "failed": "red",
    "cancelled": "dim",
    "lost": "red",
}


def price_line(
    num_devices: int,
    *,
    seconds: float | None,
    device_hours: float | None,
    usd: float | None,
    unknown: Sequence[str],
) -> str:
    """What a run will take, in one line.

    >>> price_line(8, seconds=7200.0, device_hours=16.0, usd=64.0, unknown=())
    'on 8 devices for 120 min: 16.0 device-hours, about $64'
    """
    many = "device" if num_devices == 1 else "devices"
    missing = f"; not known: {', '.join(unknown)}" if unknown else ""
    if seconds is None or device_hours is None:
        return f"on {num_devices} {many}; its cost cannot be said{missing}"
    money = "" if usd is None else f", about ${usd:,.0f}" if usd >= 10 else f", about ${usd:.2f}"
    took = quantity.seconds(seconds)
    return f"on {num_devices} {many} for {took}: {device_hours:,.1f} device-hours{money}{missing}"


def status_view(status: RunStatus) -> RenderableType:
    """How a run stands."""
    head = Text(status.name, style="bold")
    head.append(f" on {status.place}: ", style="not bold")
    head.append(status.state, style=_STYLES[status.state])
    if status.nodes_running is not None and status.state in ("pending", "running", "restarting"):
        head.append(f", {status.nodes_running} of {status.nodes} nodes", style="not bold")
    if status.restarts:
        head.append(f", restarted {status.restarts}×", style="not bold")
    parts: list[RenderableType] = [head]
    if status.why:
        parts.append(Text(f"{status.why[0].upper()}{status.why[1:]}."))
    if status.cure:
        parts.append(Text(f"→ {status.cure}", style="dim"))
    parts += [Text(line) for line in status.detail]
    return Group(*parts)


def list_view(runs: Sequence[LaunchedRun]) -> RenderableType:
    """All remembered runs, the newest first."""
    if not runs:
        return Text("No run was launched from here.")
    table = FittedTable(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name in ("run", "on", "ranks", "phase", "folder"):
        table.add_column(name)
    for run in runs:
        told = run.outcome or run.phase
        table.add_row(run.name, run.place, str(run.ranks), told, run.folder)
    return table
