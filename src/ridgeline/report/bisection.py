"""What `ridgeline bisect` shows: the commit, by how much it is slower, and how it was found."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from ridgeline import quantity
from ridgeline.records.bisection import Bisection, Commit, Probe
from ridgeline.report.fitted_table import FittedTable

_STYLES = {"good": "green", "bad": "bold red", "skipped": "dim"}


def unproven(found: Bisection) -> str | None:
    """Why the answer is not one commit beyond doubt; None where it is."""
    if found.culprit is None:
        count = len(found.suspects)
        return f"one of {count} commits it is; those between could not be run"
    if not found.proven:
        return (
            f"{found.culprit.name} is where the search ended, and not slower than its "
            "predecessor beyond doubt; more --rounds or a quieter machine decide"
        )
    return None


def bisection_view(found: Bisection) -> RenderableType:
    """The commit that was found, or those that it may be, and every commit that was asked."""
    interval = quantity.interval(found.ci_low or 0.0, found.ci_high or float("inf"))
    slower = f"{quantity.ratio(found.ratio)} the time {interval} of {found.parent.name}"
    parts: list[RenderableType] = []
    if found.culprit is not None:
        parts += [_commit(found.culprit), Text(slower, style="bold red" if found.proven else "")]
    else:
        parts.append(Text("One of these, of which some could not be run:", style="bold"))
        parts += [_commit(suspect) for suspect in found.suspects]
        parts.append(Text(f"the newest of them: {slower}", style="bold red"))
    parts.append(
        Text(
            f"{found.metric} of each run's {found.timed}, {found.rounds} interleaved rounds; "
            f"{found.bad.name} over {found.good.name}: {_ratio(found.total)}",
            style="dim",
        )
    )
    if found.probes:
        parts += [Text(), _table(found)]
    parts += [Text(note, style="yellow") for note in found.notes]
    return Group(*parts)


def _commit(commit: Commit) -> Text:
    text = Text(commit.sha[:10], style="bold yellow")
    text.append(f" {commit.subject}\n", style="bold default")
    return text.append(f"{commit.author}, {commit.date}", style="not bold default")


def _table(found: Bisection) -> FittedTable:
    table = FittedTable(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("asked", no_wrap=True)
    table.add_column("")
    table.add_column("time over the good one's", justify="right")
    table.add_column("rounds", justify="right")
    table.add_column("")
    for probe in found.probes:
        table.add_row(
            Text(probe.commit.name),
            Text(probe.verdict, style=_STYLES[probe.verdict]),
            _ratio(probe),
            str(probe.rounds) if probe.rounds else "",
            Text(probe.reason or probe.commit.subject),
        )
    return table


def _ratio(probe: Probe) -> str:
    if probe.ratio is None:
        return "–"
    interval = quantity.interval(probe.ci_low or 0.0, probe.ci_high or float("inf"))
    return f"{quantity.ratio(probe.ratio)} {interval}"
