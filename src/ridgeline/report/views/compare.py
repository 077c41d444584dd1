"""What `ridgeline compare` shows, in a terminal and in a comment of CI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline import quantity
from ridgeline.report import document as doc

if TYPE_CHECKING:
    from ridgeline.measure.compare.comparison import Comparison, Slowdown
    from ridgeline.measure.compare.history import HistoryPoint, HistoryVerdict

TONES: dict[str, doc.Tone] = {"slower": "bad", "faster": "good", "no difference": "strong"}


def comparison_document(
    comparison: Comparison, history: HistoryVerdict | None
) -> doc.ReportDocument:
    """The answer, its figures, the phases, and what the history says."""
    said = headline(comparison)
    shown: list[doc.Block] = [doc.Lead(doc.Phrase(said, TONES[comparison.verdict]))]
    cause = reason(comparison)
    if cause is not None:
        shown.append(doc.Paragraph(cause))
    columns = (doc.words("figure", ""), *doc.figures("reference", "new", "new / reference"))
    shown.append(doc.DataTable(columns, _metric_rows(comparison)))
    phases = [
        (phase.name, phase.reference_seconds, phase.new_seconds, _signed(phase.difference_seconds))
        for phase in comparison.phases
        if phase.reference_seconds > 0 or phase.new_seconds > 0
    ]
    if phases:
        titles = (
            doc.words("phase"),
            *doc.figures("reference_seconds", "new_seconds", "difference"),
        )
        shown.append(doc.Chapter("Phases (mean)", [doc.DataTable(titles, phases)]))
    shown += _parts(comparison)
    if history is not None:
        bad: doc.Tone = "bad" if history.first_bad is not None else ""
        shown.append(doc.Paragraph(f"History, {history_headline(history)}", bad))
        shown.append(doc.Lines(_change_lines(history), "dim"))
    warnings = comparison.warnings + (history.warnings if history is not None else [])
    shown.append(doc.Lines([f"warning: {warning}" for warning in warnings], "warning"))
    return doc.ReportDocument(said, shown)


def _parts(comparison: Comparison) -> list[doc.Block]:
    """Every sink of a pipeline or exported format, where the runs have several."""
    if not comparison.parts:
        return []
    columns = (
        doc.words(comparison.part_word),
        *doc.figures("reference_seconds", "new_seconds", "new / reference"),
        doc.words("verdict", ""),
    )
    rows = [
        (
            one.name,
            one.reference_seconds,
            one.new_seconds,
            f"{quantity.ratio(one.ratio)} {quantity.interval(one.ci_low, one.ci_high)}",
            doc.Phrase(one.verdict, TONES[one.verdict]),
        )
        for one in comparison.parts
    ]
    note = f"The figures above are those of {comparison.part}, which decides."
    title = f"{comparison.part_word.capitalize()}s (median)"
    return [doc.Chapter(title, [doc.DataTable(columns, rows)], note)]


def headline(comparison: Comparison) -> str:
    """The answer in one line, e.g. `1.23× slower [1.20, 1.26]`, and at which sink or format."""
    said = _change(comparison)
    undecided = comparison.part is None or comparison.verdict == "no difference"
    return said if undecided else f"{said}, {comparison.part_word} {comparison.part}"


def _change(comparison: Comparison) -> str:
    change = comparison.slowdown
    if comparison.metric is not None and comparison.metric_slowdown is not None:
        return _by_metric(comparison, comparison.metric, comparison.metric_slowdown)
    if comparison.verdict == "slower" and comparison.decided_by == "mean":
        change = comparison.mean_slowdown
        return f"{_factor(change)} slower on average {_bounds(change)}: long steps grew"
    if comparison.verdict == "no difference":
        return f"no difference beyond noise and {quantity.percent(comparison.threshold)}"
    return f"{_factor(change)} {comparison.verdict} {_bounds(change)}"


def _by_metric(comparison: Comparison, metric: str, change: Slowdown) -> str:
    if comparison.verdict == "no difference":
        allowed = quantity.percent(comparison.threshold)
        return f"no difference of {metric} beyond noise and {allowed}: {_new_over_old(change)}"
    word: str = comparison.verdict
    if "/" in metric:
        word = "more" if word == "slower" else "less"
    return f"{_factor(change)} {word} {_bounds(change)} at {metric}"


def reason(comparison: Comparison) -> str | None:
    """Which phase made it slower, None where none did."""
    for phase in comparison.phases:
        if phase.name == comparison.slower_phase:
            grown = quantity.seconds(phase.difference_seconds)
            return f"{phase.name} takes {grown} more per {comparison.new.unit}"
    return None


def history_headline(history: HistoryVerdict) -> str:
    """What the history says, in one line."""
    entries = "1 entry" if history.entries == 1 else f"{history.entries} entries"
    if history.verdict == "too few entries":
        return f"{entries}: too few to see a change"
    if history.first_bad is None:
        return f"{entries}: the newest level is as good as the best"
    return (
        f"{entries}: {quantity.ratio(history.slowdown)} slower than the best level "
        f"since {_named(history, history.first_bad)}"
    )


def _factor(change: Slowdown) -> str:
    """A factor above one: the word beside it says which way."""
    return quantity.ratio(change.ratio if change.ratio >= 1 else 1 / change.ratio)


def _bounds(change: Slowdown) -> str:
    low, high = change.ci_low, change.ci_high
    if low is not None and high is not None and change.ratio < 1:
        low, high = 1 / high, 1 / low
    return quantity.interval(low, high)


def _new_over_old(change: Slowdown) -> str:
    return f"{quantity.ratio(change.ratio)} {quantity.interval(change.ci_low, change.ci_high)}"


def _metric_rows(comparison: Comparison) -> list[tuple[doc.Cell, ...]]:
    before, after = comparison.reference, comparison.new
    rows: list[tuple[doc.Cell, ...]] = [
        ("file", before.source, after.source, ""),
        (f"{after.unit}s", quantity.count(before.steps), quantity.count(after.steps), ""),
    ]
    judged = {"p50": comparison.slowdown, "mean": comparison.mean_slowdown}
    for name, field in (("median", "p50"), ("mean", "mean"), ("p95", "p95"), ("p99", "p99")):
        old, now = getattr(before.step_seconds, field), getattr(after.step_seconds, field)
        asked = comparison.metric_slowdown if comparison.metric == field else judged.get(field)
        ratio = quantity.ratio(now / old) if asked is None else _new_over_old(asked)
        rows.append((f"{name} {after.unit}", quantity.seconds(old), quantity.seconds(now), ratio))
    # How much longer the slowest in a hundred is than the middle one.
    old, now = (side.step_seconds.p99 / side.step_seconds.p50 for side in (before, after))
    asked = comparison.metric_slowdown if comparison.metric == "p99/p50" else None
    ratio = quantity.ratio(now / old) if asked is None else _new_over_old(asked)
    rows.append(("p99 / p50", quantity.ratio(old), quantity.ratio(now), ratio))
    if comparison.peak_memory_ratio is not None:
        sizes = [quantity.memory(side.peak_memory_bytes) for side in (before, after)]
        rows.append(("peak memory", *sizes, quantity.ratio(comparison.peak_memory_ratio)))
    return rows


def _signed(seconds: float) -> str:
    return ("+" if seconds > 0 else "") + quantity.seconds(seconds)


def _change_lines(history: HistoryVerdict) -> list[str]:
    return [
        f"{change.kind} at {_named(history, change.at)}: "
        f"{quantity.seconds(change.from_seconds)} → {quantity.seconds(change.to_seconds)}"
        for change in history.changes
    ]


def _named(history: HistoryVerdict, point: HistoryPoint) -> str:
    date = f", {point.date}" if point.date else ""
    return f"{history.file}:{point.line} ({point.source}{date})"
