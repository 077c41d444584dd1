"""Verdicts on manifests, in the terminal: one line per object, and what to do below it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from ridgeline.launch.check.verdict import SERVER, ManifestProblem, ManifestVerdict


def check_view(verdicts: Sequence[ManifestVerdict]) -> RenderableType:
    """Every object with its problems, and a last line that counts."""
    parts: list[RenderableType] = []
    for verdict in verdicts:
        state, style = _state(verdict)
        line = Text(f"{verdict.source}  {verdict.kind}  {verdict.name}  ")
        line.append(state, style=style)
        parts.append(line)
        parts += [_problem(problem) for problem in verdict.problems]
    parts.append(Text(_summary(verdicts)))
    return Group(*parts)


def _state(verdict: ManifestVerdict) -> tuple[str, str]:
    if not verdict.known:
        return "unknown kind: not checked", "yellow"
    if not verdict.accepted:
        return "would be rejected", "bold red"
    if not verdict.runs:
        return "would be accepted and never start", "bold red"
    return ("fine, with advice" if verdict.problems else "fine"), "green"


def _problem(problem: ManifestProblem) -> Text:
    name = problem.reason if problem.rule == SERVER else problem.rule
    line = Text("  ")
    line.append(problem.severity, style="red" if problem.severity == "error" else "yellow")
    line.append(f" {problem.field}: {problem.message} ({name})\n")
    return line.append(f"    → {problem.cure}")


def _summary(verdicts: Sequence[ManifestVerdict]) -> str:
    known = [verdict for verdict in verdicts if verdict.known]
    rejected = sum(not verdict.accepted for verdict in known)
    stuck = sum(verdict.accepted and not verdict.runs for verdict in known)
    unknown = len(verdicts) - len(known)
    line = f"{len(known)} checked: {rejected} would be rejected, {stuck} would never start"
    return line + (f"; {unknown} of unknown kinds" if unknown else "")
