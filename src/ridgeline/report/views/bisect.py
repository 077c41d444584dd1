"""What `ridgeline bisect` shows: the commit, by how much it is slower, and how it was found."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.records.bisection import Bisection, Commit, Probe
from ridgeline.report import document as doc

_TONES: dict[str, doc.Tone] = {"good": "good", "bad": "bad", "skipped": "dim"}


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


def bisection_document(found: Bisection) -> doc.ReportDocument:
    """The commit that was found, or those that it may be, and every commit that was asked."""
    interval = quantity.interval(found.ci_low, found.ci_high)
    slower = f"{quantity.ratio(found.ratio)} the time {interval} of {found.parent.name}"
    shown: list[doc.Block] = []
    if found.culprit is not None:
        shown.append(doc.Paragraph(_commit(found.culprit)))
        shown.append(doc.Paragraph(slower, "bad" if found.proven else ""))
    else:
        shown.append(doc.Paragraph("One of these, of which some could not be run:", "strong"))
        shown.append(doc.Lines([_commit(suspect) for suspect in found.suspects]))
        shown.append(doc.Paragraph(f"the newest of them: {slower}", "bad"))
    asked = f"{found.metric} of each run's {found.timed}, {found.rounds} interleaved rounds; "
    total = f"{found.bad.name} over {found.good.name}: {_ratio(found.total)}"
    shown.append(doc.Paragraph(asked + total, "dim"))
    if found.probes:
        columns = (
            doc.words("asked"),
            doc.words("verdict", ""),
            doc.Column("time over the good one's"),
            doc.Column("rounds"),
            doc.words("subject", ""),
        )
        shown.append(doc.DataTable(columns, [_row(probe) for probe in found.probes]))
    return doc.ReportDocument("bisection", [*shown, doc.Lines(found.notes, "warning")])


def _commit(commit: Commit) -> doc.Words:
    name = doc.Phrase(commit.sha[:10], "warning")
    return name, doc.Phrase(f" {commit.subject}", "strong"), f"\n{commit.author}, {commit.date}"


def _row(probe: Probe) -> tuple[doc.Words, ...]:
    verdict = doc.Phrase(probe.verdict, _TONES[probe.verdict])
    rounds = str(probe.rounds) if probe.rounds else ""
    said = probe.reason or probe.commit.subject
    return probe.commit.name, verdict, _ratio(probe), rounds, said


def _ratio(probe: Probe) -> str:
    if probe.ratio is None:
        return "–"
    return f"{quantity.ratio(probe.ratio)} {quantity.interval(probe.ci_low, probe.ci_high)}"
