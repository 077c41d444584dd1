"""What `ridgeline realtime tune` shows: the ledger of a pipeline, stages before and after."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.records.realtime_ledger import CureRow, FrameFigures, RealtimeLedger
from ridgeline.report import document as doc
from ridgeline.report.views.doctor import environment_section

_PIECE = 48
"""Letters of an option that a terminal shows."""


def tuning_document(ledger: RealtimeLedger) -> doc.ReportDocument:
    """The answer, every cure that was tried, the stages before and after."""
    good = ledger.tuned is not None and ledger.verified and ledger.complete
    lead = doc.Lead(
        title=tuning_claim(ledger),
        subtitle=f"95 % interval {quantity.interval(*ledger.cumulative_ci)}, measured side by side"
        if ledger.tuned is not None
        else "",
        origin=f"{ledger.pipeline}, {ledger.file}",
        chip=doc.Phrase(_proven(ledger), "good" if good else "bad" if not ledger.verified else ""),
    )
    note = (
        "Each cure was measured side by side with the stack above it; kept if the interval says so."
    )
    shown: list[doc.Block] = [
        doc.Only("terminal", [doc.Paragraph(f"{ledger.pipeline}, {ledger.file}", "dim")]),
        doc.Only("page", [lead]),
    ]
    if ledger.final_rows:
        falls = doc.Chapter("From slow to fast", [doc.Waterfall(_falls(ledger))])
        shown.append(doc.Only("page", [falls]))
    if ledger.rows:
        shown.append(doc.Chapter("Ledger", [_cure_table(ledger)], note))
    shown += [
        doc.Chapter("Stages", [_stage_table(ledger)], "Median seconds of a call, side by side."),
        doc.Chapter("The whole pipeline", [_total_table(ledger)], _total_note(ledger)),
        doc.Only("terminal", [_answer(ledger)]),
        *_written(ledger),
        doc.Only("page", [_skipped(ledger), environment_section(ledger.environment)]),
        doc.Lines(ledger.notes, "warning"),
    ]
    return doc.ReportDocument(f"{ledger.pipeline}: {tuning_claim(ledger)}", shown)


def tuning_claim(ledger: RealtimeLedger) -> str:
    """What the stack as a whole gained, in the words that its number allows."""
    if ledger.tuned is None:
        return "No cure made it faster"
    word = "faster" if ledger.cumulative > 1 else "the speed"
    return f"{quantity.ratio(ledger.cumulative)} {word}"


def _proven(ledger: RealtimeLedger) -> str:
    if ledger.tuned is None:
        return "no cure survived measurement" if ledger.complete else "not finished"
    if not ledger.verified:
        return "the results of the stack as a whole differ"
    return "verified" if ledger.complete else "not finished: proven so far"


def _cure_table(ledger: RealtimeLedger) -> doc.DataTable:
    bounds = [
        bound
        for row in ledger.rows
        if row.rounds
        for bound in (row.ci_low, row.ci_high or row.multiplier)
    ]
    span = (min([*bounds, 1.0]), max([*bounds, 1.0]))
    columns = (
        doc.words("mark", ""),
        doc.words("cure", "Cure"),
        doc.Column("multiplier_ratio", "multiplier"),
        doc.Column("interval", "95 %"),
        doc.Column("whisker", "", only="page"),
        doc.Column("total_ratio", "total"),
        doc.Column("frame_seconds", "frame"),
        doc.Column("p99_over_p50", "P99/P50", only="page"),
        doc.Column("verification", "Verification", "remark"),
    )
    return doc.DataTable(columns, [_cure_row(row, span) for row in ledger.rows], lead=2)


def _cure_row(row: CureRow, span: tuple[float, float]) -> doc.TableRow:
    remark = row.reason
    if row.kept:
        parts = [row.verification, f"costs: {row.costs}" if row.costs else ""]
        parts.append("a later cure took its place" if row.superseded else "")
        remark = "\n".join(part for part in parts if part)
    measured: tuple[doc.Cell, ...] = ("–", "", "", "", "", "")
    if row.rounds:
        high = row.ci_high or row.multiplier
        measured = (
            doc.Phrase(quantity.ratio(row.multiplier), "strong" if row.kept else ""),
            quantity.interval(row.ci_low, row.ci_high),
            doc.Whisker(row.ci_low, row.multiplier, high, span),
            row.cumulative if row.kept else "",
            row.frame_seconds,
            "" if row.p99_over_p50 is None else f"{row.p99_over_p50[1]:.2f}",
        )
    watched = "" if row.watched == "p50" else f" ({row.watched})"
    name = (row.cure + watched, doc.Phrase(f" {_options(row)}", "dim"))
    mark: doc.Words = doc.Phrase("✓", "good") if row.kept else "–"
    return doc.TableRow((mark, name, *measured, remark), "" if row.kept else "dim")


def _options(row: CureRow) -> str:
    texts = (f"{name}={value}" for name, value in row.options.items())
    return " ".join(text if len(text) <= _PIECE else text[: _PIECE - 1] + "…" for text in texts)


def _falls(ledger: RealtimeLedger) -> list[doc.Fall]:
    """How each cure shortened the frame; the last bar was measured against the first."""
    before = ledger.baseline.frame_seconds
    after = before / ledger.cumulative
    falls = [doc.Fall("as it stood", "", before, 0.0, quantity.seconds(before), total=True)]
    left = before
    for row in ledger.final_rows:
        if row.watched not in ("p50", "mean"):
            continue
        start, left = left, left / row.multiplier
        label = quantity.ratio(row.multiplier)
        falls.append(doc.Fall(row.cure, _options(row), start, left, label))
    measured = "measured side by side"
    return [*falls, doc.Fall("tuned", measured, after, 0.0, quantity.seconds(after), total=True)]


def _stage_table(ledger: RealtimeLedger) -> doc.DataTable:
    columns = (
        doc.words("stage"),
        doc.Column("before_seconds", "before"),
        doc.Column("after_seconds", "after"),
        doc.Column("share", "of the frame before"),
        doc.Column("faster_ratio", "faster"),
    )
    before, tuned = ledger.baseline, ledger.tuned
    rows: list[tuple[doc.Cell, ...]] = []
    for name, seconds in before.stage_seconds.items():
        after = None if tuned is None else tuned.stage_seconds.get(name)
        share = quantity.percent(seconds / before.frame_seconds)
        rows.append((name, seconds, after, share, seconds / after if after else None))
    return doc.DataTable(columns, rows)


def _total_table(ledger: RealtimeLedger) -> doc.DataTable:
    columns = (doc.words("figure", ""), *doc.figures("before", "after"))
    before, after = ledger.baseline, ledger.tuned

    def row(title: str, text: list[str]) -> tuple[doc.Cell, ...]:
        return (title, *text, *([""] if len(text) == 1 else []))

    variants = [before] if after is None else [before, after]
    rows = [
        row("frame, P50", [quantity.seconds(one.frame_seconds) for one in variants]),
        row("frame, P99", [quantity.seconds(one.p99_seconds) for one in variants]),
        row("P99/P50", [f"{one.p99_over_p50:.2f}" for one in variants]),
        row("frames per second", [quantity.digits(one.frames_per_second) for one in variants]),
    ]
    if before.missed_share is not None:
        rows.append(row("missed or dropped", [_missed(one) for one in variants]))
    for name in before.quality:
        texts = [quantity.digits(one.quality[name]) for one in variants if name in one.quality]
        rows.append(row(name, texts))
    return doc.DataTable(columns, rows)


def _missed(one: FrameFigures) -> str:
    return "–" if one.missed_share is None else quantity.percent(one.missed_share, 1)


def _total_note(ledger: RealtimeLedger) -> str:
    frames = f"{ledger.baseline.frames} frames at a rate at which none waits"
    if ledger.deadline_seconds is None:
        return f"{frames}; frames per second in a tight loop."
    deadline = quantity.seconds(ledger.deadline_seconds)
    return (
        f"{frames}; misses of {deadline} at the declared rate; frames per second in a tight loop."
    )


def _answer(ledger: RealtimeLedger) -> doc.Block:
    before, after = ledger.baseline.frame_seconds, ledger.tuned
    if after is None:
        text = f"{quantity.seconds(before)} per frame: "
        return doc.Paragraph((doc.Phrase(text, "strong"), _proven(ledger)))
    spans = f"{quantity.seconds(before)} → {quantity.seconds(after.frame_seconds)} per frame: "
    claim = doc.Phrase(tuning_claim(ledger), "good" if ledger.cumulative > 1 else "strong")
    rest = f" {quantity.interval(*ledger.cumulative_ci)}, {_proven(ledger)}, {ledger.verification}"
    return doc.Paragraph((doc.Phrase(spans, "strong"), claim, rest))


def _written(ledger: RealtimeLedger) -> list[doc.Block]:
    pairs: list[tuple[str, doc.Words]] = []
    if ledger.stack is not None:
        options = f" {ledger.run_options}" if ledger.run_options else ""
        pairs.append(("tuned pipeline", f"ridgeline realtime run {ledger.stack}{options}"))
    if ledger.report is not None:
        pairs.append(("report", ledger.report))
    return [doc.Only("terminal", [doc.Values(pairs, listed=True)])] if pairs else []


def _skipped(ledger: RealtimeLedger) -> doc.Block:
    rows = [(name, why) for name, why in ledger.skipped.items()]
    columns = (doc.words("cure"), doc.words("why", "Why"))
    return doc.Chapter("Not tried", [doc.DataTable(columns, rows)])
