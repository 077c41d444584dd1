"""`ridgeline evaluate` and `ridgeline compress` in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from ridgeline import quantity
from ridgeline.records.compression import (
    ChannelOutliers,
    CompressionLedger,
    CompressionRow,
    Decoding,
    Evaluation,
    Protocol,
    Quality,
    Search,
    Speedup,
    Zeros,
)
from ridgeline.report.fitted_table import FittedTable

COLUMNS = (
    "size",
    "smaller",
    "zeros",
    "perplexity",
    "rise",
    "accuracy",
    "KL mean",
    "KL p99",
    "tokens/s",
    "faster",
    "95 %",
)
"""Of a ledger; each ratio and rise is against the row above."""

NARROW = (
    ("size", "smaller"),
    ("perplexity", "rise"),
    ("KL mean", "KL p99"),
    ("tokens/s", "zeros"),
    ("faster", "95 %"),
)
"""In the terminal, which of them stand one over the other."""


def evaluation_view(found: Evaluation) -> RenderableType:
    """The whole answer."""
    table = FittedTable(box=None, pad_edge=False, show_header=found.reference is not None)
    for name in ("", found.model, found.reference or ""):
        table.add_column(name, justify="right" if name else "left")
    theirs = found.reference_quality
    for name, own, other in (
        *_quality_lines(found.quality, theirs),
        ("on disk", quantity.memory(found.disk_bytes), _bytes(found.reference_disk_bytes)),
        *_zero_rows(found.zeros, found.reference_zeros),
        *_decoding_lines(found.decoding, found.reference_decoding),
    ):
        table.add_row(name, own, other)
    parts: list[RenderableType] = [table, Text()]
    if found.divergence is not None:
        one = found.divergence
        parts.append(
            Text(
                f"KL from the reference: mean {quantity.digits(one.kl_mean)}, p99"
                f" {quantity.digits(one.kl_p99)} nats a token; same first choice at"
                f" {one.agreement:.2%} of tokens"
            )
        )
    parts += [Text(line) for line in outlier_lines(found.outliers)]
    if found.speedup is not None:
        parts.append(Text(f"decodes {speedup_text(found.speedup)} as fast as the reference"))
    if found.no_decoding:
        parts.append(Text(f"decoding not measured: {found.no_decoding}", style="yellow"))
    parts.append(Text(protocol_line(found.protocol), style="dim"))
    parts.append(Text(f"computed with {found.computed_with}", style="dim"))
    return Group(*parts)


def _quality_lines(own: Quality, other: Quality | None) -> list[tuple[str, str, str]]:
    return [
        (
            "perplexity, per token",
            f"{own.perplexity:.3f}",
            "" if other is None else f"{other.perplexity:.3f}",
        ),
        (
            "perplexity, per word",
            quantity.digits(own.word_perplexity),
            "" if other is None else quantity.digits(other.word_perplexity),
        ),
        (
            "bits per byte",
            f"{own.bits_per_byte:.4f}",
            "" if other is None else f"{other.bits_per_byte:.4f}",
        ),
        (
            "token accuracy",
            f"{own.accuracy:.2%}",
            "" if other is None else f"{other.accuracy:.2%}",
        ),
    ]


def _zero_rows(own: Zeros | None, other: Zeros | None) -> list[tuple[str, str, str]]:
    if own is None:
        return []
    labels = ["parameters", "zeros in the blocks' matrices", "zeros in all parameters"]
    rows = list(zip(labels, _zero_cells(own), _zero_cells(other), strict=True))
    if own.two_of_four:
        rows.append(("matrices that are 2:4", f"{own.two_of_four} of {own.matrices}", ""))
    return rows


def _zero_cells(of: Zeros | None) -> list[str]:
    if of is None:
        return ["", "", ""]
    return [quantity.count(of.parameters), f"{of.share_of_matrices:.1%}", f"{of.share_of_all:.1%}"]


def _decoding_lines(own: Decoding | None, other: Decoding | None) -> list[tuple[str, str, str]]:
    if own is None:
        return []
    return [
        (
            "weights in memory, served",
            quantity.memory(own.held_bytes),
            "" if other is None else quantity.memory(other.held_bytes),
        ),
        (
            f"tokens/s, {own.dtype}, batch {own.batch}, {own.threads} threads on {own.device}",
            quantity.digits(own.tokens_per_second),
            "" if other is None else quantity.digits(other.tokens_per_second),
        ),
    ]


def ledger_view(ledger: CompressionLedger) -> RenderableType:
    """The rows, what was refused or saved, and how it was measured."""
    table = FittedTable(box=None, pad_edge=False)
    table.add_column("scheme\nagainst the row above")
    for upper, lower in NARROW:
        table.add_column(f"{upper}\n{lower}", justify="right", no_wrap=True)
    for above, row in zip([None, *ledger.rows], ledger.rows, strict=False):
        cells = dict(zip(COLUMNS, row_cells(row, above), strict=True))
        table.add_row(
            Text(row.scheme, style="bold"),
            *(f"{cells[upper]}\n{cells[lower]}" for upper, lower in NARROW),
        )
    parts: list[RenderableType] = [table, Text()]
    parts += [Text(line) for line in remark_lines(ledger)]
    notices = [notice for row in ledger.rows for notice in row.notices]
    parts += [Text(notice, style="yellow") for notice in few(notices)]
    if ledger.search is not None:
        parts += [Text(line) for line in search_lines(ledger.search)]
    if ledger.refused:
        parts.append(Text(f"nothing was saved: {ledger.refused}", style="red"))
        parts += [Text(line) for line in sensitive_lines(ledger)]
    for name, file in ledger.exports.items():
        parts.append(Text(f"{name}: {file}"))
    if ledger.saved is not None:
        changed = ledger.rows[-1].scheme != "as given"  # else there are exports alone, no model
        serve = f"; serve it: ridgeline serve {ledger.saved}" if changed else ""
        parts.append(Text(f"saved: {ledger.saved}{serve}"))
    if ledger.protocol is not None:
        parts.append(Text(protocol_line(ledger.protocol), style="dim"))
    return Group(*parts)


def row_cells(row: CompressionRow, above: CompressionRow | None) -> list[str]:
    """A row under `COLUMNS`."""
    cells = [
        quantity.memory(row.disk_bytes),
        "" if above is None else quantity.ratio(above.disk_bytes / max(1, row.disk_bytes)),
    ]
    cells.append("–" if row.zeros is None else f"{row.zeros.share_of_matrices:.1%}")
    own, before = row.quality, None if above is None else above.quality
    cells.append("–" if own is None else f"{own.perplexity:.3f}")
    rise = "" if own is None or before is None else f"{own.perplexity / before.perplexity - 1:+.2%}"
    cells += [rise, "–" if own is None else f"{own.accuracy:.2%}"]
    if row.divergence is None:
        cells += ["", ""]
    else:
        cells += [
            quantity.digits(row.divergence.kl_mean),
            quantity.digits(row.divergence.kl_p99),
        ]
    speed = row.decoding
    cells.append("–" if speed is None else quantity.digits(speed.tokens_per_second))
    if row.speedup is None:
        return [*cells, "", ""]
    return [*cells, quantity.ratio(row.speedup.ratio), _bounds(row.speedup)]


def protocol_line(one: Protocol) -> str:
    """What must be the same for two perplexities to compare."""
    return (
        f"{one.text}: context {one.context}, stride {one.stride},"
        f" {'begins with BOS' if one.bos else 'no BOS'}, {quantity.count(one.scored)} of"
        f" {quantity.count(one.tokens)} tokens scored ({quantity.count(one.words)} words,"
        f" {quantity.count(one.bytes)} bytes); perplexity is per token of this tokenizer"
    )


def sensitive_lines(ledger: CompressionLedger) -> list[str]:
    """The layers that cost most."""
    if not ledger.sensitive:
        return []
    named = [f"{one.layer} (KL {quantity.digits(one.kl)})" for one in ledger.sensitive]
    return [f"most sensitive, each compressed alone: {', '.join(named)}"]


def remark_lines(ledger: CompressionLedger) -> list[str]:
    """What is to be said of single rows."""
    lines = []
    for row in ledger.rows:
        said = [row.remark, *zero_lines(row.zeros), *outlier_lines(row.outliers)]
        lines += [f"{row.scheme}: {one}" for one in said if one]
    return lines


def zero_lines(zeros: Zeros | None) -> list[str]:
    """Nothing of a model without a pattern."""
    if zeros is None or not zeros.two_of_four:
        return []
    share = f"{zeros.share_of_all:.1%} of all parameters are zero"
    return [f"2:4 in {zeros.two_of_four} of {zeros.matrices} matrices; {share}"]


def outlier_lines(found: Sequence[ChannelOutliers]) -> list[str]:
    """How many layers have outliers, and the worst of them."""
    if not found:
        return []
    worst = found[0]
    have = "layers have" if len(found) > 1 else "layer has"
    ratio, levels = quantity.ratio(worst.ratios[0]), quantity.digits(worst.levels_left)
    where = f"worst {worst.layer}, channel {worst.channels[0]}"
    cost = f"{ratio} the median, which one scale leaves {levels} of int8's 127 levels"
    return [f"{len(found)} {have} outlier channels; {where}: {cost}"]


def search_lines(found: Search) -> list[str]:
    """How the combination was found."""
    first = (
        f"{found.target} for {found.aim}: {len(found.sensitivities)} sensitivities,"
        f" {len(found.attempts)} combinations measured"
    )
    lines = [first]
    for one in found.attempts:
        cost = quantity.memory(one.cost) if found.aim == "size" else quantity.seconds(one.cost)
        lines.append(
            f"  {cost}: KL {quantity.digits(one.kl)}, {quantity.digits(one.predicted_kl)} by the"
            f" sum of its layers; {'held' if one.allowed else 'too much'}"
        )
    return lines


def speedup_text(one: Speedup) -> str:
    """A ratio and its interval."""
    return f"{quantity.ratio(one.ratio)} {_bounds(one)}"


def few(texts: Sequence[str], most: int = 5) -> list[str]:
    """The first ones, and how many more there are."""
    left = len(texts) - most
    return [*texts[:most], *([f"and {left} more notices"] if left > 0 else [])]


def _bounds(one: Speedup) -> str:
    if one.ci_low is None or one.ci_high is None:
        return "[–, –]"
    return quantity.interval(one.ci_low, one.ci_high)


def _bytes(value: int | None) -> str:
    return "" if value is None else quantity.memory(value)
