"""DistributedDataParallel without the search for unused parameters, where there are none.

With `find_unused_parameters` it walks the autograd graph after every forward and exchanges what
it found. Without it, a parameter that does get no gradient makes DDP raise an error.
"""

from __future__ import annotations

from typing import Any

from ridgeline.measure.child.points import Points, edit_arguments
from ridgeline.patches import Undo
from ridgeline.records.ledger import Options
from ridgeline.techniques import (
    Applicability,
    Card,
    Context,
    Edit,
    Gain,
    SetArgument,
    Stage,
    amdahl,
)

CARD = Card(
    name="ddp-no-unused",
    title="DDP without search for unused parameters",
    cures=("find-unused-parameters",),
    costs="A parameter without gradient becomes an error.",
    source="PyTorch documentation, DistributedDataParallel, find_unused_parameters",
    promise="rounding",
    stage=Stage.COMMUNICATION,
    slot="ddp-unused",
)


def applies(context: Context) -> Applicability:
    """DDP that searches the graph for unused parameters in every step."""
    wrapped = [m for m in context.profile.models if m.wrapper == "DistributedDataParallel"]
    if not wrapped:
        return Applicability(False, "no model is wrapped in DistributedDataParallel")
    if not any(model.ddp_find_unused for model in wrapped):
        return Applicability(False, "unused parameters are not searched for")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """The search through the graph goes, and with it an exchange per step."""
    return amdahl(context.phase_share("forward", "backward"), 1.0, 1.15)


def apply(points: Points, options: Options) -> Undo:
    """Set it as the wrapper is constructed."""

    def set_it(arguments: dict[str, Any]) -> None:
        if arguments.get("find_unused_parameters", False) is not False:
            arguments["find_unused_parameters"] = False
            points.changed(CARD.name, "find_unused_parameters=False")

    return edit_arguments("torch.nn.parallel:DistributedDataParallel.__init__", set_it)


def edits(context: Context, options: Options) -> list[Edit]:
    """One argument of the wrapper's constructor."""
    return [
        SetArgument(
            files=context.files,
            callee="DistributedDataParallel",
            keyword="find_unused_parameters",
            value="False",
        )
    ]
