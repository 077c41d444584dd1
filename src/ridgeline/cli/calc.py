"""`ridgeline calc FORMULA NAME=VALUE…`: one textbook formula of performance."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from typing import Annotated

import typer

from ridgeline.cli.show import Json


def calc(
    formula: Annotated[
        str | None,
        typer.Argument(metavar="FORMULA", help="The formula's name. Default: a list of all."),
    ] = None,
    values: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE…", help="The formula's arguments.")
    ] = None,
    json: Json = False,
) -> None:
    """A formula of the theory: memory states, collectives, checkpoints, learning rates, money."""
    from ridgeline.cli.show import print_document, print_json
    from ridgeline.plan.calc import FORMULAS, about, calculate, usage
    from ridgeline.report.views.calc import calc_document

    if formula is None:
        listed = [{"formula": one, "about": about(one), "usage": usage(one)} for one in FORMULAS]
        if json:
            print_json(listed)
            return
        print_document(calc_document("Formulas", {one["formula"]: one["about"] for one in listed}))
        return
    found = calculate(formula, values or [])
    if json:
        print_json(found)
        return
    if is_dataclass(found.result) and not isinstance(found.result, type):
        shown = calc_document(about(formula), asdict(found.result), found.assumed)
    else:
        single = {formula: found.result}
        shown = calc_document(about(formula), single, found.assumed, found.measure)
    print_document(shown)
