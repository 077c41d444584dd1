"""OpenVINO answers the model's calls, in float32, bfloat16 or int8.

It computes in the precision that is asked for, never in its default. In int8 the ranges come from
the script's own first inputs; the answers are compared on its next ones before they are used.
"""

from __future__ import annotations

from ridgeline.records.edits import Edit
from ridgeline.records.ledger import Options
from ridgeline.techniques import Card, Context, Stage
from ridgeline.techniques.kinds.runtime import answer_by

CARD = Card(
    name="openvino",
    title="OpenVINO",
    cures=("unfused-elementwise", "tiny-operators", "host-python"),
    costs="Seconds to convert at the start; a second copy of the weights; no gradients.",
    source="OpenVINO documentation, Precision Control; NNCF, Post-Training Quantization",
    equivalence="rounding",
    stage=Stage.RUNTIME,
    slot="runtime",
    opaque=True,
    optional={"bf16": bool, "int8": bool},
    equivalence_with={"bf16": "reduced-precision", "int8": "quantised"},
)

applies, options, predict, apply = answer_by(CARD, "openvino")


def edits(context: Context, options: Options) -> list[Edit]:
    """No edit, for how a program is kept is its author's matter (`ridgeline export`)."""
    return []
