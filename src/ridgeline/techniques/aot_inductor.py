"""AOTInductor answers the model's calls: compiled ahead of the first, with packed weights.

Unlike `torch.compile` its weights are constants, so convolutions and matmuls find them in the
order that their kernels read, and no guard is checked in a call.
"""

from __future__ import annotations

from ridgeline.records.edits import Edit
from ridgeline.records.ledger import Options
from ridgeline.techniques import Card, Context, Stage
from ridgeline.techniques.kinds.runtime import answer_by

CARD = Card(
    name="aot-inductor",
    title="AOTInductor",
    cures=("unfused-elementwise", "tiny-operators", "host-python"),
    costs="A minute of compilation at the start; a second copy of the weights; no gradients.",
    source="PyTorch documentation, torch.export AOTInductor",
    equivalence="rounding",
    stage=Stage.RUNTIME,
    slot="runtime",
    opaque=True,
    optional={"bf16": bool},
    equivalence_with={"bf16": "reduced-precision"},
)

applies, options, predict, apply = answer_by(CARD, "aoti")


def edits(context: Context, options: Options) -> list[Edit]:
    """No edit, for how a program is kept is its author's matter (`ridgeline export`)."""
    return []
