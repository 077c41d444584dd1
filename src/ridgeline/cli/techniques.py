"""`ridgeline techniques [NAME]` shows what techniques cure, cost, leave equal and have gained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.show import Json

if TYPE_CHECKING:
    from ridgeline.records.technique_card import GainFile, TechniqueCard
    from ridgeline.techniques import Card, Technique


def techniques(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="One technique in full. Default: a list of all."),
    ] = None,
    json: Json = False,
) -> None:
    """What `ridgeline tune` can apply: title, cures, costs, equivalence, source, slot."""
    from ridgeline.cli.show import print_document, print_json
    from ridgeline.records.technique_card import TechniqueList, measured_gains
    from ridgeline.report.views.techniques import technique_document, technique_list_document
    from ridgeline.techniques import all_techniques

    known = all_techniques()
    ordered = sorted(known.values(), key=lambda one: (one.CARD.stage, one.CARD.name))
    gains = measured_gains()
    cards = [_card(one, gains) for one in ordered]
    chosen = cards if name is None else [_named(name, cards)]
    found = TechniqueList(
        techniques=chosen,
        measured_on=None if gains is None else f"{gains.measured_on}: {gains.command}",
    )
    if json:
        print_json(found)
    elif name is None:
        print_document(technique_list_document(found))
    else:
        rivals = _rivals(known[chosen[0].name].CARD, cards)
        print_document(technique_document(found, beside=rivals))


def _card(technique: Technique, gains: GainFile | None) -> TechniqueCard:
    import inspect

    from ridgeline.records.technique_card import TechniqueCard

    card = technique.CARD
    about = inspect.getdoc(technique) or ""
    rows = [] if gains is None else gains.gain
    return TechniqueCard(
        name=card.name,
        title=card.title,
        about=about,
        cures=list(card.cures),
        costs=card.costs,
        equivalence=card.equivalence,
        equivalence_with=dict(card.equivalence_with),
        source=card.source,
        stage=card.stage.name.lower(),
        slot=card.slot,
        required={option: kind.__name__ for option, kind in card.required.items()},
        optional={option: kind.__name__ for option, kind in card.optional.items()},
        measured=[row for row in rows if row.technique == card.name],
    )


def _named(name: str, cards: list[TechniqueCard]) -> TechniqueCard:
    import difflib

    from ridgeline.errors import InputError

    for card in cards:
        if card.name == name:
            return card
    names = [card.name for card in cards]
    near = difflib.get_close_matches(name.casefold().replace("_", "-"), names, n=3, cutoff=0.5)
    near += [one for one in names if name.casefold() in one and one not in near]
    hint = f"did you mean {' or '.join(near[:3])}?" if near else "`ridgeline techniques` lists them"
    raise InputError(f"no technique {name!r}; {hint}")


def _rivals(card: Card, cards: list[TechniqueCard]) -> list[str]:
    """Others in its slot, of which a stack holds one."""
    if card.slot is None:
        return []
    return [one.name for one in cards if one.slot == card.slot and one.name != card.name]
