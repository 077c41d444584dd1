"""Tell DistributedDataParallel that every step uses the same parameters in the same order.

It then finds unused parameters once instead of in every step, and allows activation
checkpointing to be re-entered. A graph that does change makes it raise an error.
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
    name="ddp-static-graph",
    title="DDP static graph",
    cures=("find-unused-parameters",),
    costs="The set of parameters used must never change.",
    source="PyTorch documentation, DistributedDataParallel, static_graph",
    promise="rounding",
    stage=Stage.COMMUNICATION,
    slot="ddp-unused",
)


def applies(context: Context) -> Applicability:
    """DDP that searches the graph for unused parameters in every step."""
    wrapped = [m for m in context.profile.models if m.wrapper == "DistributedDataParallel"]
    if not wrapped:
        return Applicability(False, "no model is wrapped in DistributedDataParallel")
    if all(model.ddp_static_graph for model in wrapped):
        return Applicability(False, "the graph is declared static")
    if not any(model.ddp_find_unused for model in wrapped):
        return Applicability(False, "unused parameters are not searched for")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """The search through the graph goes, after the first step."""
    return amdahl(context.phase_share("forward", "backward"), 1.0, 1.1)


def apply(points: Points, options: Options) -> Undo:
    """Set it as the wrapper is constructed."""

    def set_it(arguments: dict[str, Any]) -> None:
        if arguments.get("static_graph", False) is not True:
            arguments["static_graph"] = True
            points.changed(CARD.name, "static_graph=True")

    return edit_arguments("torch.nn.parallel:DistributedDataParallel.__init__", set_it)


def edits(context: Context, options: Options) -> list[Edit]:
    """One argument of the wrapper's constructor."""
    return [
        SetArgument(
            files=context.files,
            callee="DistributedDataParallel",
            keyword="static_graph",
            value="True",
        )
    ]
