"""ONNX Runtime answers the model's calls: its graph fused, its weights packed once.

In int8 weights and activations take their ranges from the script's own first inputs; the answers
are compared on its next ones before they are used.
"""

from __future__ import annotations

from ridgeline.records.edits import Edit
from ridgeline.records.ledger import Options
from ridgeline.techniques import Card, Context, Stage
from ridgeline.techniques.kinds.runtime import answer_by

CARD = Card(
    name="onnx-runtime",
    title="ONNX Runtime",
    cures=("unfused-elementwise", "tiny-operators", "host-python"),
    costs="Seconds to convert at the start; a second copy of the weights; no gradients.",
    source="ONNX Runtime documentation, Quantize ONNX models; Jacob et al., CVPR 2018",
    equivalence="rounding",
    stage=Stage.RUNTIME,
    slot="runtime",
    opaque=True,
    optional={"int8": bool},
    equivalence_with={"int8": "quantised"},
)

applies, options, predict, apply = answer_by(CARD, "onnx")


def edits(context: Context, options: Options) -> list[Edit]:
    """No edit, for how a program is kept is its author's matter (`ridgeline export`)."""
    return []
