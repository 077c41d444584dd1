"""`ridgeline calc FORMULA NAME=VALUE…`: one textbook formula of performance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.output_options import Json

if TYPE_CHECKING:
    from rich.console import RenderableType


def calc(
    formula: Annotated[
        str | None, typer.Argument(help="The formula's name; without one, all are listed.")
    ] = None,
    values: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="The formula's arguments.")
    ] = None,
    json: Json = False,
) -> None:
    """A formula of the theory: memory states, collectives, checkpoints, learning rates, money."""
    from ridgeline.cli.show import print_json, print_view
    from ridgeline.plan.calc import FORMULAS, about, calculate, usage

    if formula is None:
        listed = [{"formula": one, "about": about(one), "usage": usage(one)} for one in FORMULAS]
        if json:
            print_json(listed)
            return
        print_view(_pairs({one["formula"]: one["about"] for one in listed}))
        return
    found = calculate(formula, values or [])
    if json:
        print_json(found)
        return
    result = {formula: found.result}
    if is_dataclass(found.result) and not isinstance(found.result, type):
        result = asdict(found.result)
    print_view(_pairs({"": about(formula), **result}))


def _pairs(values: Mapping[str, object]) -> RenderableType:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name, value in values.items():
        table.add_row(name, str(value))
    return table
