"""What `ridgeline techniques` shows in a terminal: all the cards, or one in full."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from statistics import median

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ridgeline import quantity
from ridgeline.records.technique_card import MeasuredGain, TechniqueCard, TechniqueList
from ridgeline.report.fitted_table import FittedTable

PROMISES = {
    "bit-equal": "every loss is the same number",
    "rounding": "losses part no further than when the script is disturbed by 2⁻¹⁸",
    "reduced-precision": "losses part no further than when the script is disturbed by 2⁻⁸",
    "statistical": "losses differ no more than between two seeds",
}


def technique_list_view(found: TechniqueList) -> RenderableType:
    """Every card in a few lines, in the order in which a stack applies them."""
    parts: list[RenderableType] = []
    for stage, cards in groupby(found.techniques, key=lambda card: card.stage):
        parts.append(Text(stage, style="bold"))
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1)
        for card in cards:
            grid.add_row(Text(card.name, style="cyan"), _in_short(card))
        parts += [Padding(grid, (0, 0, 1, 2))]
    parts.append(Text("`ridgeline techniques NAME` shows one in full.", style="dim"))
    if found.measured_on is not None:
        parts.append(Text(f"Gains: {found.measured_on}", style="dim"))
    return Group(*parts)


def _in_short(card: TechniqueCard) -> Text:
    text = Text(card.title)
    if card.measured:
        text.append(f"\ngained {_gained(card.measured)}", style="green")
    text.append(f"\ncures {', '.join(card.cures)}; {card.promise}", style="dim")
    if card.slot is not None:
        text.append(f"; slot {card.slot}", style="dim")
    text.append(f"\ncosts: {card.costs}", style="dim")
    text.append(f"\nfrom: {card.source}", style="dim")
    return text


def _gained(rows: Sequence[MeasuredGain]) -> str:
    """The median gain where it was kept, and how often that was."""
    kept = [row.multiplier for row in rows if row.kept]
    tried = f"{len(kept)} of {len(rows)} scripts"
    return f"{quantity.ratio(median(kept))} in the median of {tried}" if kept else f"in {tried}"


def technique_view(found: TechniqueList, *, beside: Sequence[str]) -> RenderableType:
    """One card in full, with what it gained on each script."""
    (card,) = found.techniques
    title = Text(card.title, style="bold")
    title.append(f"  {card.name}", style="not bold cyan")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(ratio=1)
    grid.add_row("cures", Text(", ".join(card.cures)))
    grid.add_row("costs", Text(card.costs))
    meaning = PROMISES.get(card.promise)
    grid.add_row("promise", Text(f"{card.promise}: {meaning}" if meaning else card.promise))
    grid.add_row("source", Text(card.source))
    grid.add_row("stage", Text(card.stage))
    if card.slot is not None:
        others = f", which it shares with {', '.join(beside)}" if beside else ""
        grid.add_row("slot", Text(card.slot + others))
    for label, options in (("required", card.required), ("options", card.optional)):
        if options:
            said = ", ".join(f"{name} ({kind})" for name, kind in options.items())
            grid.add_row(label, Text(said))
    parts: list[RenderableType] = [title, Text(), Text(_unwrapped(card.about)), Text(), grid]
    if card.measured:
        parts += [Text(), _gain_table(card.measured), Text(found.measured_on or "", style="dim")]
    alone = f"Try it alone: ridgeline tune --only {card.name} -- script.py"
    return Group(*parts, Text(), Text(alone, style="dim"))


def _unwrapped(text: str) -> str:
    """Paragraphs without the line ends of the source; what is indented stays as it is."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(
        one if one.startswith((" ", "-")) else " ".join(one.split("\n")) for one in paragraphs
    )


def _gain_table(rows: Sequence[MeasuredGain]) -> FittedTable:
    table = FittedTable(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("script")
    for name in ("gained", "95 %", "kept"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            Text(row.script),
            quantity.ratio(row.multiplier),
            quantity.interval(row.ci_low, row.ci_high),
            "✓" if row.kept else "–",
        )
    return table
