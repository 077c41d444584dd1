"""What `ridgeline export` shows: formats side by side, what was wrong, what was fused, outliers."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.records.runtime_export import ExportRow, ExportSpeed, Likeness, RuntimeExport
from ridgeline.report import document as doc
from ridgeline.report.views.calls import bounds, outlier_blocks, paced_blocks
from ridgeline.report.views.doctor import environment_section

COLUMNS = (
    doc.words("format"),
    doc.words("status"),
    doc.Column("size_bytes", "size"),
    *doc.figures("top-1", "agreement", "SQNR"),
    doc.Column("p50_seconds", "P50"),
    doc.Column("p99_seconds", "P99"),
    *doc.figures("P99, 95 %", "img/s", "faster", "95 %"),
)
"""Agreement, SQNR and speed are against eager float32; latency is that of one input."""
MOST_KINDS = 8
_TONES: dict[str, doc.Tone] = {"ok": "good", "failed": "bad", "differs": "bad", "dropped": "bad"}


def export_document(found: RuntimeExport) -> doc.ReportDocument:
    """The table of formats first, as people know it; then what stands behind each row."""
    timed = [(row.format, speed.closed, speed.paced) for row, speed in _timed(found)]
    table = doc.DataTable(COLUMNS, [_row(row) for row in found.rows])
    shown: list[doc.Block] = [
        doc.Chapter(
            "Formats", [table], f"{found.inputs} inputs of {found.check}; {found.threads} threads."
        ),
        doc.Lines(_whys(found), "bad"),
        *_cases(found),
        *_start(found),
        *paced_blocks("format", timed),
        *outlier_blocks("format", timed),
        *_fusion(found),
        doc.Lines([*found.notes, *_notes(found)], "dim"),
    ]
    if found.saved is not None:
        files = [f"{row.format}: {row.file}" for row in found.rows if row.file is not None]
        shown.append(doc.Only("terminal", [doc.Lines(files)]))
    else:
        shown.append(doc.Paragraph("nothing was saved", "bad"))
    shown.append(doc.Only("page", [environment_section(found.environment)]))
    return doc.ReportDocument(f"Export of {found.model}", shown)


def _row(row: ExportRow) -> tuple[doc.Cell, ...]:
    speed, main = row.speed, _main(row)
    name = row.format if row.precision == "fp32" else f"{row.format} {row.precision}"
    best = max((one.per_second for one in speed.throughput), default=None) if speed else None
    return (
        name,
        doc.Phrase(row.status, _TONES[row.status]),
        row.size_bytes,
        None if row.top1 is None else quantity.percent(row.top1, 2),
        None if main is None or main.agreement is None else quantity.percent(main.agreement, 2),
        None if main is None or main.sqnr_db is None else f"{main.sqnr_db:.0f} dB",
        None if speed is None else speed.closed.p50.seconds,
        None if speed is None else speed.closed.p99.seconds,
        None if speed is None else bounds(speed.closed.p99),
        None if best is None else quantity.digits(best),
        None if row.speedup is None else quantity.ratio(row.speedup.ratio),
        None if row.speedup is None else quantity.interval(row.speedup.ci_low, row.speedup.ci_high),
    )


def _main(row: ExportRow) -> Likeness | None:
    """The case with the most inputs."""
    return max(
        (one for one in row.likeness if not one.fixed), key=lambda one: one.inputs, default=None
    )


def _whys(found: RuntimeExport) -> list[str]:
    """A line for each reason, with the formats that it holds for."""
    formats: dict[str, list[str]] = {}
    for row in found.rows:
        if row.reason:
            formats.setdefault(_why(row), []).append(row.format)
    return [f"{', '.join(names)}: {why}" for why, names in formats.items()]


def _why(row: ExportRow) -> str:
    stage = row.wrong_stage
    if stage is None:
        return str(row.reason)
    after = f", after {stage.before} which agreed" if stage.before else ""
    return (
        f"{row.reason}; first wrong layer of {stage.compared}: {stage.layer}"
        f" (SQNR {stage.sqnr_db:.1f} dB{after})"
    )


def _cases(found: RuntimeExport) -> list[doc.Block]:
    columns: tuple[doc.Column, ...] = (
        doc.words("format"),
        *doc.figures("batch", "size", "inputs", "agreement", "SQNR"),
        doc.Column("largest error"),
        doc.words("remark", ""),
    )
    rows: list[tuple[doc.Cell, ...]] = [
        (
            row.format,
            str(one.batch),
            " × ".join(map(str, one.size)),
            None if one.fixed else str(one.inputs),
            None if one.agreement is None else quantity.percent(one.agreement, 2),
            None if one.sqnr_db is None else f"{one.sqnr_db:.1f} dB",
            None if one.max_abs_error is None else quantity.digits(one.max_abs_error),
            doc.Phrase(one.wrong, "bad") if one.wrong else one.fixed,
        )
        for row in found.rows
        for one in row.likeness
        if row.format != "eager" or one.fixed
    ]
    if not rows:
        return []
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return [doc.Chapter("Answers beside eager float32", [doc.DataTable(columns, rows)])]


def _timed(found: RuntimeExport) -> list[tuple[ExportRow, ExportSpeed]]:
    return [(row, row.speed) for row in found.rows if row.speed is not None]


def _start(found: RuntimeExport) -> list[doc.Block]:
    columns = (
        doc.words("format"),
        doc.Column("convert_seconds", "convert"),
        doc.Column("load_seconds", "load"),
        doc.Column("first_call_seconds", "first call"),
        doc.Column("peak_bytes", "peak memory"),
        doc.Column("grown_bytes", "of the model"),
        *doc.figures(*(f"img/s at {batch}" for batch in _batches(found))),
    )
    rows = [
        (
            row.format,
            "cached" if row.cached else (row.convert_seconds or None),
            speed.load_seconds,
            speed.first_call_seconds,
            speed.peak_memory_bytes,
            max(0, speed.peak_memory_bytes - speed.before_memory_bytes),
            *(_rate(speed, batch) for batch in _batches(found)),
        )
        for row, speed in _timed(found)
    ]
    note = (
        "Peak memory of a process with Python and torch; the last calls were at the largest batch."
    )
    return (
        [doc.Chapter("Start, memory, throughput", [doc.DataTable(columns, rows)], note)]
        if rows
        else []
    )


def _batches(found: RuntimeExport) -> list[int]:
    return sorted({one.batch for _, speed in _timed(found) for one in speed.throughput})


def _rate(speed: ExportSpeed, batch: int) -> str | None:
    return next(
        (quantity.digits(one.per_second) for one in speed.throughput if one.batch == batch), None
    )


def _fusion(found: RuntimeExport) -> list[doc.Block]:
    seen = [(row.format, row.fusion) for row in found.rows if row.fusion is not None]
    if not seen:
        return []
    before = seen[0][1]
    rows = [("eager", str(before.operators), _kinds(before.before))]
    rows += [(name, str(one.kernels), _kinds(one.after)) for name, one in seen]
    columns = (doc.words("format"), *doc.figures("kernels"), doc.words("kinds", "of these kinds"))
    note = "Operators of one forward pass, and what each runtime has left of them."
    return [doc.Chapter("Fusion", [doc.DataTable(columns, rows)], note)]


def _kinds(counts: dict[str, int]) -> str:
    most = sorted(counts.items(), key=lambda one: -one[1])
    rest = sum(count for _, count in most[MOST_KINDS:])
    shown = [f"{count} {kind}" for kind, count in most[:MOST_KINDS]]
    return ", ".join([*shown, *([f"{rest} others"] if rest else [])])


def _notes(found: RuntimeExport) -> list[str]:
    return [f"{row.format}: {note}" for row in found.rows for note in row.notes]
