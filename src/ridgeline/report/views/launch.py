"""What `ridgeline launch` shows: the price before, how runs stand, verdicts on manifests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ridgeline import quantity
from ridgeline.records.launched_run import LaunchedRun, RunStatus
from ridgeline.report.document import (
    Block,
    DataTable,
    Lines,
    Paragraph,
    Phrase,
    ReportDocument,
    Tone,
    Words,
)
from ridgeline.report.document import words as column

if TYPE_CHECKING:
    from ridgeline.launch.check.verdict import ManifestProblem, ManifestVerdict


_TONES: dict[str, Tone] = {
    "pending": "warning",
    "running": "good",
    "restarting": "warning",
    "done": "good",
    "failed": "bad",
    "cancelled": "dim",
    "lost": "bad",
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
    money = "" if usd is None else f", about {quantity.usd(round(usd) if usd >= 10 else usd)}"
    money = money.removesuffix(".00")
    took = quantity.seconds(seconds)
    return f"on {num_devices} {many} for {took}: {device_hours:,.1f} device-hours{money}{missing}"


def status_document(status: RunStatus) -> ReportDocument:
    """How a run stands, and why."""
    head: tuple[str | Phrase, ...] = (
        Phrase(status.name, "strong"),
        f" on {status.place}: ",
        Phrase(status.state, _TONES[status.state]),
    )
    if status.nodes_running is not None and status.state in ("pending", "running", "restarting"):
        head += (f", {status.nodes_running} of {status.nodes} nodes",)
    if status.restarts:
        head += (f", restarted {status.restarts}×",)
    shown: list[Block] = [Paragraph(head)]
    if status.why:
        shown.append(Paragraph(f"{status.why[0].upper()}{status.why[1:]}."))
    if status.cure:
        shown.append(Paragraph(f"→ {status.cure}", "dim"))
    return ReportDocument(status.name, [*shown, Lines(status.detail)])


def runs_document(runs: Sequence[LaunchedRun]) -> ReportDocument:
    """All remembered runs, the newest first."""
    if not runs:
        return ReportDocument("runs", [Paragraph("No run was launched from here.")])
    columns = [column(title) for title in ("run", "on", "ranks", "phase", "folder")]
    rows = [
        (run.name, run.place, str(run.ranks), run.outcome or run.phase, run.folder) for run in runs
    ]
    return ReportDocument("runs", [DataTable(columns, rows)])


def check_document(verdicts: Sequence[ManifestVerdict]) -> ReportDocument:
    """Every object of a manifest with its problems, and a last line that counts."""
    lines: list[Words] = []
    for verdict in verdicts:
        head = f"{verdict.source}  {verdict.kind}  {verdict.name}  "
        lines.append((head, _state(verdict)))
        lines += [_problem(problem) for problem in verdict.problems]
    return ReportDocument("manifests", [Lines(lines), Paragraph(_summary(verdicts))])


def _state(verdict: ManifestVerdict) -> Phrase:
    if not verdict.known:
        return _state_of_unknown(verdict)
    if not verdict.accepted:
        return Phrase("would be rejected", "bad")
    if not verdict.runs:
        return Phrase("would be accepted and never start", "bad")
    return Phrase("fine, with advice" if verdict.problems else "fine", "good")


def _state_of_unknown(verdict: ManifestVerdict) -> Phrase:
    if not verdict.pods:
        return Phrase("unknown kind: not checked", "warning")
    if not verdict.runs:
        return Phrase("unknown kind; its pods would be refused", "bad")
    advice = ", with advice" if verdict.problems else ""
    return Phrase(f"unknown kind; its pods are fine{advice}", "warning" if advice else "good")


def _problem(problem: ManifestProblem) -> Words:
    # What the API server itself refuses has the server's reason for a name.
    name = problem.reason if problem.rule == "server" else problem.rule
    tone: Tone = "bad" if problem.severity == "error" else "warning"
    said = f" {problem.field}: {problem.message} ({name})\n    → {problem.cure}"
    return "  ", Phrase(problem.severity, tone), said


def _summary(verdicts: Sequence[ManifestVerdict]) -> str:
    checked = [verdict for verdict in verdicts if verdict.known or verdict.pods]
    rejected = sum(not verdict.accepted for verdict in checked)
    stuck = sum(verdict.accepted and not verdict.runs for verdict in checked)
    line = f"{len(checked)} checked: {rejected} would be rejected, {stuck} would never start"
    unknown = [verdict for verdict in verdicts if not verdict.known]
    if not unknown:
        return line
    inside = sum(bool(verdict.pods) for verdict in unknown)
    alone = f", of {inside} the pods alone were checked" if inside else ""
    return f"{line}; {len(unknown)} of unknown kinds{alone}"


def wait_line(seconds: tuple[float, float, float], *, running: int, ahead: int, ended: int) -> str:
    """How long a run will wait, with its interval, and what that rests on.

    >>> wait_line((0.0, 60.0, 7200.0), running=9, ahead=2, ended=40)
    'wait: about 60.0 s (0 s to 120 min, 8 times of 10): 2 ahead, 9 running, by 40 ended runs'
    """
    low, middle, high = (quantity.seconds(one) for one in seconds)
    return (
        f"wait: about {middle} ({low} to {high}, 8 times of 10): {ahead} ahead, {running} running,"
        f" by {ended} ended runs"
    )
