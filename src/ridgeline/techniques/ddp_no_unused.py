"""DistributedDataParallel without the search for unused parameters, where there are none.

With `find_unused_parameters` it walks the autograd graph after every forward and exchanges what
it found. Without it, a parameter that does get no gradient makes DDP raise an error.
"""

from __future__ import annotations

from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl
from ridgeline.techniques.kinds.argument import set_argument

CARD = Card(
    name="ddp-no-unused",
    title="DDP without search for unused parameters",
    cures=("find-unused-parameters",),
    costs="A parameter without gradient becomes an error.",
    source="PyTorch documentation, DistributedDataParallel, find_unused_parameters",
    equivalence="rounding",
    stage=Stage.COMMUNICATION,
    slot="ddp-unused",
)


def applies(context: Context) -> Applicability:
    """DDP that searches the graph for unused parameters in every step."""
    wrapped = context.data_parallel_models
    if not wrapped:
        return Applicability(False, "no model is wrapped in DistributedDataParallel")
    if not any(model.ddp_find_unused for model in wrapped):
        return Applicability(False, "unused parameters are not searched for")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """The search through the graph goes, and with it an exchange per step."""
    return amdahl(context.phase_share("forward", "backward"), 1.0, 1.15)


apply, edits = set_argument(CARD, "DistributedDataParallel", "find_unused_parameters", False)
