"""What `ridgeline evaluate` shows: quality, size and speed, beside those of a reference."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline import quantity
from ridgeline.records.compression import (
    ChannelOutliers,
    Decoding,
    Evaluation,
    Protocol,
    Quality,
    Speedup,
    Zeros,
)
from ridgeline.report.document import (
    Block,
    Column,
    DataTable,
    Lines,
    Paragraph,
    ReportDocument,
    words,
)

Sides = tuple[str, str | None]
"""A value of the model, and that of its reference."""


def evaluation_document(found: Evaluation) -> ReportDocument:
    """A line per figure, then how far the model is from its reference."""
    rows: dict[str, Sides] = {
        **_sides(_quality(found.quality), _quality(found.reference_quality)),
        "on disk": (quantity.memory(found.disk_bytes), _memory(found.reference_disk_bytes)),
        **_sides(_zeros(found.zeros), _zeros(found.reference_zeros)),
        **_sides(_decoding(found.decoding), _decoding(found.reference_decoding)),
    }
    own, other = found.model, found.reference
    if found.seen is not None:
        own = f"{found.seen.first} first and {found.seen.recent} recent tokens seen"
        other = "all seen" if other == found.model else other
    columns = [words("figure", ""), Column(own)]
    if other is not None:
        columns.append(Column(other))
    cells = [(name, *both[: len(columns) - 1]) for name, both in rows.items()]
    shown: list[Block] = [DataTable(columns, cells)]
    if found.divergence is not None:
        one = found.divergence
        shown.append(
            Paragraph(
                f"KL from the reference: mean {quantity.digits(one.kl_mean)}, p99"
                f" {quantity.digits(one.kl_p99)} nats a token; same first choice at"
                f" {quantity.percent(one.agreement, 2)} of tokens"
            )
        )
    shown.append(Lines(outlier_lines(found.outliers)))
    if found.speedup is not None:
        shown.append(Paragraph(f"decodes {speedup_text(found.speedup)} as fast as the reference"))
    if found.no_decoding:
        shown.append(Paragraph(f"decoding not measured: {found.no_decoding}", "warning"))
    said = [protocol_line(found.protocol), f"computed with {found.computed_with}"]
    return ReportDocument(f"Evaluation of {found.model}", [*shown, Lines(said, "dim")])


def _sides(own: dict[str, str], other: dict[str, str]) -> dict[str, Sides]:
    return {name: (value, other.get(name)) for name, value in own.items()}


def _quality(one: Quality | None) -> dict[str, str]:
    if one is None:
        return {}
    return {
        "perplexity, per token": f"{one.perplexity:.3f}",
        "perplexity, per word": quantity.digits(one.word_perplexity),
        "bits per byte": f"{one.bits_per_byte:.4f}",
        "token accuracy": quantity.percent(one.accuracy, 2),
    }


def _zeros(one: Zeros | None) -> dict[str, str]:
    if one is None:
        return {}
    shown = {
        "parameters": quantity.count(one.parameters),
        "zeros in the blocks' matrices": quantity.percent(one.share_of_matrices, 1),
        "zeros in all parameters": quantity.percent(one.share_of_all, 1),
    }
    if one.two_of_four:
        shown["matrices that are 2:4"] = f"{one.two_of_four} of {one.matrices}"
    return shown


def _decoding(one: Decoding | None) -> dict[str, str]:
    if one is None:
        return {}
    how = f"tokens/s, {one.dtype}, batch {one.batch}, {one.threads} threads on {one.device}"
    return {
        "weights in memory, served": quantity.memory(one.held_bytes),
        how: quantity.digits(one.tokens_per_second),
    }


def _memory(value: int | None) -> str | None:
    return None if value is None else quantity.memory(value)


def protocol_line(one: Protocol) -> str:
    """What must be the same for two perplexities to compare."""
    return (
        f"{one.text}: context {one.context}, stride {one.stride},"
        f" {'begins with BOS' if one.bos else 'no BOS'}, {quantity.count(one.scored)} of"
        f" {quantity.count(one.tokens)} tokens scored ({quantity.count(one.words)} words,"
        f" {quantity.count(one.bytes)} bytes); perplexity is per token of this tokenizer"
    )


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


def speedup_text(one: Speedup) -> str:
    """A ratio and its interval."""
    return f"{quantity.ratio(one.ratio)} {quantity.interval(one.ci_low, one.ci_high)}"
