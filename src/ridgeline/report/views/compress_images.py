"""What `ridgeline compress` and `ridgeline evaluate` show of models that take images.

Agreement with the model as given stands first: top-1 can stay where it was while many answers
change, as many to the right as to the wrong one.
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline import quantity
from ridgeline.records.image_compression import (
    Bounded,
    Calls,
    ImageEvaluation,
    ImageLedger,
    ImageProtocol,
    ImageRow,
    PlannedLayer,
    Share,
)
from ridgeline.report import document as doc
from ridgeline.report.views.compress import faster, few, fewer, pairwise
from ridgeline.report.views.doctor import environment_section

ANSWERS = (
    doc.words("scheme"),
    *doc.figures("agreement", "95 %", "SQNR", "KL mean", "top-1", "change", "lost / won", "p"),
)
"""Agreement, SQNR, KL and the paired test are against the model as given."""
OUTPUTS = (
    doc.words("scheme"),
    doc.words("output"),
    *doc.figures("shape", "SQNR", "error", "agreement"),
)
COSTS = (
    doc.words("scheme"),
    doc.Column("disk_bytes", "size"),
    doc.Column("smaller"),
    doc.Column("flops", "FLOPs"),
    doc.Column("fewer"),
    doc.Column("latency_seconds", "latency"),
    *doc.figures("faster", "95 %"),
)
CALLS = (
    doc.words("scheme"),
    doc.words("runtime"),
    *doc.figures("batch", "P50", "95 %", "P99", "95 %", "first call", "calls"),
)
LAYERS = (
    doc.words("layer"),
    doc.words("kind"),
    doc.Column("MACs"),
    *doc.figures("weights", "inputs", "SQNR alone"),
    doc.words("why"),
)
MOST_LAYERS = 8


def image_compression_document(ledger: ImageLedger) -> doc.ReportDocument:
    """The rows, what was refused or saved, and how it was measured."""
    whole = [f"left whole: {line}" for row in ledger.rows[-1:] for line in row.left_whole]
    remarks = [f"{row.scheme}: {row.remark}" for row in ledger.rows if row.remark]
    shown: list[doc.Block] = [
        _answers(ledger.rows),
        _costs(ledger.rows),
        *_calls(ledger.rows),
        *_layers(ledger.rows[-1].layers),
        doc.Lines(remarks),
        doc.Lines(few(whole)),
    ]
    if ledger.refused:
        shown.append(doc.Paragraph(f"nothing was saved: {ledger.refused}", "bad"))
    written = [f"{name}: {file}" for name, file in ledger.exports.items()]
    if ledger.saved is not None:
        written.append(f"saved: {ledger.saved}")
    said = _protocol(ledger.protocol, ledger.rows)
    shown += [doc.Lines(written), doc.Lines(said, "dim")]
    shown.append(doc.Only("page", [environment_section(ledger.environment)]))
    return doc.ReportDocument(f"Compression of {ledger.model}", shown)


def image_evaluation_document(found: ImageEvaluation) -> doc.ReportDocument:
    """One model beside the one that it is compared with."""
    rows = [row for row in (found.against_row, found.row) if row is not None]
    said = _protocol(found.protocol, rows)
    shown: list[doc.Block] = [_answers(rows), *_calls(rows), doc.Lines(said, "dim")]
    return doc.ReportDocument(f"Evaluation of {found.model}", shown)


def _answers(rows: Sequence[ImageRow]) -> doc.Block:
    if any(row.outputs or row.mean_average_precision is not None for row in rows):
        return _outputs(rows)
    cells = [_answer(row, rows[0]) for row in rows]
    return doc.Chapter(
        "Answers", [doc.DataTable(ANSWERS, cells)], "Beside the model as given, image by image."
    )


def _outputs(rows: Sequence[ImageRow]) -> doc.Block:
    cells: list[tuple[doc.Cell, ...]] = [
        (
            row.scheme,
            one.name,
            " × ".join(map(str, one.shape)) or "1",
            "no noise" if one.relative_error == 0 else _decibels(one.sqnr_db),
            "infinite" if one.relative_error is None else quantity.percent(one.relative_error, 2),
            "" if one.agreement is None else quantity.percent(one.agreement.share, 2),
        )
        for row in rows
        for one in row.outputs
    ]
    precise = [
        f"mAP at IoU 0.50 to 0.95: {row.scheme} {quantity.percent(row.mean_average_precision, 2)}"
        for row in rows
        if row.mean_average_precision is not None
    ]
    note = "Each beside that of the model as given. error: √(Σ (x − y)² / Σ x²)."
    measured = [
        f"metric: {row.scheme} {quantity.digits(row.metric)}"
        for row in rows
        if row.metric is not None
    ]
    shown: list[doc.Block] = [doc.DataTable(OUTPUTS, cells), doc.Lines([*precise, *measured])]
    return doc.Chapter("Outputs", shown, note)


def _decibels(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} dB"


def _answer(row: ImageRow, first: ImageRow) -> tuple[doc.Cell, ...]:
    one, far = row.answers, row.divergence
    accuracy, before = _accuracy(row), _accuracy(first)
    change = "" if one is None or accuracy is None or before is None else accuracy - before
    test = None if one is None else one.changed
    return (
        row.scheme,
        "" if one is None or one.agreement is None else quantity.percent(one.agreement.share, 2),
        "" if one is None or one.agreement is None else _interval(one.agreement),
        "" if one is None else "no noise" if one.sqnr_db is None else f"{one.sqnr_db:.1f} dB",
        "" if far is None else quantity.digits(far.kl_mean),
        None if accuracy is None else quantity.percent(accuracy, 2),
        quantity.change(change, 2) if isinstance(change, float) else change,
        "" if test is None else f"{test.lost} / {test.won}",
        "" if test is None else quantity.digits(test.p_value),
    )


def _accuracy(row: ImageRow) -> float | None:
    return None if row.quality is None else row.quality.accuracy


def _interval(one: Share) -> str:
    return f"{quantity.percent(one.ci_low, 1)} to {quantity.percent(one.ci_high, 1)}"


def _costs(rows: Sequence[ImageRow]) -> doc.Block:
    return doc.Chapter(
        "Ledger", [doc.DataTable(COSTS, pairwise(_cost, rows))], "Against the row above."
    )


def _cost(row: ImageRow, above: ImageRow | None) -> tuple[doc.Cell, ...]:
    seconds = None if row.latency is None else row.latency.seconds
    return (
        row.scheme,
        row.disk_bytes,
        "" if above is None else fewer(above.disk_bytes, row.disk_bytes),
        row.flops,
        "" if above is None else fewer(above.flops, row.flops),
        seconds,
        *faster(row.speedup),
    )


def _calls(rows: Sequence[ImageRow]) -> list[doc.Block]:
    cells = [_call(row.scheme, one) for row in rows for one in row.calls]
    if not cells:
        return []
    note = (
        "Each candidate in a process of its own, in turns; intervals by order statistics. faster:"
        " over the row above in the same runtime, batch 1."
    )
    return [doc.Chapter("Calls", [doc.DataTable(CALLS, cells)], note)]


def _call(scheme: str, one: Calls) -> tuple[doc.Cell, ...]:
    return (
        scheme,
        one.runtime,
        str(one.batch),
        quantity.seconds(one.p50.seconds),
        _bounds(one.p50),
        quantity.seconds(one.p99.seconds),
        _bounds(one.p99),
        quantity.seconds(one.first_seconds),
        str(one.calls),
    )


def _bounds(one: Bounded) -> str:
    if one.ci_low is None or one.ci_high is None:
        return "too few calls"
    return f"{quantity.seconds(one.ci_low)} to {quantity.seconds(one.ci_high)}"


def _layers(layers: Sequence[PlannedLayer]) -> list[doc.Block]:
    """What stayed in float and what costs most, in the terminal; all of them on the page."""
    if not layers:
        return []
    ranked = sorted(
        layers, key=lambda one: (one.activation_bits is not None, _alone(one), -one.macs)
    )
    told = [one for one in ranked if one.activation_bits is None or one.sqnr_db is not None]
    left = len(layers) - len(told[:MOST_LAYERS])
    note = "Layers in float first, then those that cost most when they alone are rounded."
    if told:
        rest = [f"{left} layers more, all of them on the page"] if left else []
        table = doc.DataTable(LAYERS, [_layer(one) for one in told[:MOST_LAYERS]])
        short = doc.Chapter("Layers", [table, doc.Lines(rest)], note)
    else:
        said = f"{left} are rounded, all of them on the page; --mixed ranks them"
        short = doc.Chapter("Layers", [doc.Lines([said])])
    return [
        doc.Only("terminal", [short]),
        doc.Only(
            "page",
            [doc.Chapter("Layers", [doc.DataTable(LAYERS, [_layer(one) for one in ranked])], note)],
        ),
    ]


def _alone(one: PlannedLayer) -> float:
    return 1e9 if one.sqnr_db is None else one.sqnr_db


def _layer(one: PlannedLayer) -> tuple[doc.Cell, ...]:
    return (
        one.layer,
        one.kind,
        quantity.count(one.macs),
        "float" if one.weight_bits is None else f"int{one.weight_bits}",
        "float" if one.activation_bits is None else f"int{one.activation_bits}",
        "" if one.sqnr_db is None else f"{one.sqnr_db:.1f} dB",
        one.why,
    )


def _protocol(one: ImageProtocol, rows: Sequence[ImageRow]) -> list[str]:
    shape = " × ".join(str(size) for size in one.shape)
    chosen = f", {one.calibrated} others chose" if one.calibrated else ""
    lines = [f"{one.images}: {one.judged} images of {shape}{chosen}"]
    if not one.labelled:
        lines.append("the images have no labels: accuracy is left out, agreement is judged alone")
    if one.preprocess:
        lines.append(f"pictures are {one.preprocess}")
    lines.append("computed with " + ", ".join(dict.fromkeys(row.computed_with for row in rows)))
    timed = rows[0].latency
    if timed is not None and not rows[0].calls:
        lines.append(
            f"latency of {timed.batch} image, {timed.dtype}, {timed.threads} threads on"
            f" {timed.device}, in turns"
        )
    calls = [one for row in rows for one in row.calls]
    if calls:
        lines.append(f"{calls[0].threads} threads for each call")
    return lines
