"""Tell DistributedDataParallel that every step uses the same parameters in the same order.

It then finds unused parameters once instead of in every step, and allows activation
checkpointing to be re-entered. A graph that does change makes it raise an error.
"""

from __future__ import annotations

from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl
from ridgeline.techniques.kinds.argument import set_argument

CARD = Card(
    name="ddp-static-graph",
    title="DDP static graph",
    cures=("find-unused-parameters",),
    costs="The set of parameters used must never change.",
    source="PyTorch documentation, DistributedDataParallel, static_graph",
    equivalence="rounding",
    stage=Stage.COMMUNICATION,
    slot="ddp-unused",
)


def applies(context: Context) -> Applicability:
    """DDP that searches the graph for unused parameters in every step."""
    wrapped = context.data_parallel_models
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


apply, edits = set_argument(CARD, "DistributedDataParallel", "static_graph", True)
