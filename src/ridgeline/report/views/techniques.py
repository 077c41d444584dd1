"""What `ridgeline techniques` shows: all the cards, or one in full."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from statistics import median

from ridgeline import quantity
from ridgeline.records.technique_card import MeasuredGain, TechniqueCard, TechniqueList
from ridgeline.report import document as doc

EQUIVALENCES = {
    "bit-equal": "every loss is the same number",
    "rounding": "losses part no further than when the script is disturbed by 2⁻¹⁸",
    "reduced-precision": "losses part no further than when the script is disturbed by 2⁻⁸",
    "quantised": "outputs keep their SQNR and the same answer for 93 % of the script's own inputs",
    "statistical": "losses differ no more than between two seeds",
}


def technique_list_document(found: TechniqueList) -> doc.ReportDocument:
    """Every card in a few lines, in the order in which a stack applies them."""
    shown: list[doc.Block] = [
        doc.Chapter(
            stage, [doc.Values([(card.name, _in_short(card)) for card in cards], listed=True)]
        )
        for stage, cards in groupby(found.techniques, key=lambda card: card.stage)
    ]
    shown.append(doc.Paragraph("`ridgeline techniques NAME` shows one in full.", "dim"))
    if found.measured_on is not None:
        shown.append(doc.Paragraph(f"Gains: {found.measured_on}", "dim"))
    return doc.ReportDocument("Techniques", shown)


def _in_short(card: TechniqueCard) -> doc.Words:
    gained = (doc.Phrase(f"\ngained {_gained(card.measured)}", "good"),) if card.measured else ()
    said = f"\ncures {', '.join(card.cures)}; {_equivalences(card)}"
    said += "" if card.slot is None else f"; slot {card.slot}"
    said += f"\ncosts: {card.costs}\nfrom: {card.source}"
    return (card.title, *gained, doc.Phrase(said, "dim"))


def _equivalences(card: TechniqueCard) -> str:
    """The equivalence, and those that hold with an option."""
    others = (f"{name} with {option}" for option, name in card.equivalence_with.items())
    return ", or ".join([card.equivalence, *others])


def _meaning(equivalence: str) -> str:
    meaning = EQUIVALENCES.get(equivalence)
    return f"{equivalence}: {meaning}" if meaning else equivalence


def _gained(rows: Sequence[MeasuredGain]) -> str:
    """The median gain where it was kept, and how often that was."""
    kept = [row.multiplier for row in rows if row.kept]
    tried = f"{len(kept)} of {len(rows)} scripts"
    return f"{quantity.ratio(median(kept))} in the median of {tried}" if kept else f"in {tried}"


def technique_document(found: TechniqueList, *, beside: Sequence[str]) -> doc.ReportDocument:
    """One card in full, with what it gained on each script."""
    (card,) = found.techniques
    pairs: list[tuple[str, doc.Words]] = [
        ("cures", ", ".join(card.cures)),
        ("costs", card.costs),
        ("equivalence", _meaning(card.equivalence)),
        *((f"with {option}", _meaning(name)) for option, name in card.equivalence_with.items()),
        ("source", card.source),
        ("stage", card.stage),
    ]
    if card.slot is not None:
        others = f", which it shares with {', '.join(beside)}" if beside else ""
        pairs.append(("slot", card.slot + others))
    for label, options in (("required", card.required), ("options", card.optional)):
        if options:
            said = ", ".join(f"{name} ({kind})" for name, kind in options.items())
            pairs.append((label, said))
    shown: list[doc.Block] = [
        doc.Paragraph((doc.Phrase(card.title, "strong"), doc.Phrase(f"  {card.name}", "accent"))),
        doc.Paragraph(f"\n{_unwrapped(card.about)}"),
        doc.Values(pairs, listed=True),
    ]
    if card.measured:
        shown += [_gain_table(card.measured), doc.Paragraph(found.measured_on or "", "dim")]
    alone = f"Try it alone: ridgeline tune --only {card.name} -- script.py"
    return doc.ReportDocument(card.title, [*shown, doc.Paragraph(alone, "dim")])


def _unwrapped(text: str) -> str:
    """Paragraphs without the line ends of the source; what is indented stays as it is."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(
        one if one.startswith((" ", "-")) else " ".join(one.split("\n")) for one in paragraphs
    )


def _gain_table(rows: Sequence[MeasuredGain]) -> doc.DataTable:
    columns = (
        doc.words("script"),
        doc.Column("gained_ratio"),
        doc.Column("95 %"),
        doc.Column("kept"),
    )
    cells = [
        (row.script, row.multiplier, quantity.interval(row.ci_low, row.ci_high),
         "✓" if row.kept else "–")
        for row in rows
    ]  # fmt: skip
    return doc.DataTable(columns, cells)
