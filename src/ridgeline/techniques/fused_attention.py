"""Attention that the script writes out, softmax between two matmuls, run as one fused kernel.

The matrix of weights is neither written nor read: on long sequences it is what attention's time
and memory go into. The script's own lines stay; where its scores are computed, they wait, and what
is done to them is handed to `scaled_dot_product_attention` as a whole.
"""

from __future__ import annotations

from typing import Any

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo, in_reverse, patch
from ridgeline.records.edits import AtStart, Edit
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl, source_of_kernel

CARD = Card(
    name="fused-attention",
    title="Attention written by hand as one kernel",
    cures=("unfused-attention",),
    costs="Attention weights are formed only where something else looks at them; with dropout, on "
    "GPUs, a kernel chooses which of them are dropped.",
    source="Dao et al., FlashAttention, 2022; PyTorch documentation, scaled_dot_product_attention",
    equivalence="rounding",
    stage=Stage.SETTINGS,
    required={"file": str, "function": str},
    optional={"dropout": bool},
    equivalence_with={"dropout": "statistical"},
)

_SAFE_SOFTMAX = "aten::_safe_softmax"
"""Only the unfused form of `scaled_dot_product_attention` calls it."""
_PARTS = ("aten::_softmax", "aten::_softmax_backward_data", "aten::masked_fill", "aten::bmm")
_MATMULS = ("torch:matmul", "torch:bmm", "torch:einsum", "torch:Tensor.matmul",
             "torch:Tensor.bmm", "torch:Tensor.__matmul__")  # fmt: skip


def applies(context: Context) -> Applicability:
    """Attention stands in a function of the user's, without dropout that only weights can have."""
    unfused = context.profile.habit("math_attention")
    site = unfused.site
    if unfused.calls == 0 or site is None:
        return Applicability(False, "no attention that is written out was seen")
    if any(model.compiled for model in context.profile.models):
        return Applicability(False, "compiled code does not come by here, and fuses its own")
    if context.operator_share(_SAFE_SOFTMAX) > 0:
        return Applicability(False, "attention is called as one and forbidden its kernels")
    if not site.function or site in [model.forward_site for model in context.profile.models]:
        return Applicability(False, "attention is written out in a library")
    if context.operator_share(*_PARTS) < 0.02:
        return Applicability(False, "attention takes less than 2 % of the step")
    return Applicability(True, "")


def options(context: Context) -> list[Options]:
    """Where it stands; on a GPU, whose kernels drop weights too, with their dropout."""
    site = context.profile.habit("math_attention").site
    assert site is not None
    where: Options = {"file": site.file, "function": site.function.rpartition(".")[2]}
    drops = context.device == "cuda" and any(model.has_dropout for model in context.profile.models)
    return [{**where, "dropout": True}] if drops else [where]


def predict(context: Context, options: Options) -> Gain:
    """Scores and weights no longer travel to memory and back; short ones never did."""
    return amdahl(context.operator_share(*_PARTS), 0.8, 4.0)


def apply(points: Points, options: Options) -> Undo:
    """Let matmuls in that function wait."""
    from ridgeline.kernels.scores_that_wait import makes_scores_wait

    def fused() -> None:
        points.changed(CARD.name, f"attention in {options['function']} runs as one kernel")

    def waiting(original: Any) -> Any:
        return makes_scores_wait(
            original,
            str(options["file"]),
            str(options["function"]),
            fused,
            bool(options.get("dropout")),
        )

    return in_reverse([patch(name, waiting) for name in _MATMULS])


def edits(context: Context, options: Options) -> list[Edit]:
    """The scores that wait, and the matmuls that make them, in the place of torch's."""
    file, function = options["file"], options["function"]
    drops = ", may_drop=True" if options.get("dropout") else ""
    lines = [
        f'{name} = makes_scores_wait({name}, "{file}", "{function}"{drops})'
        for name in (matmul.replace(":", ".") for matmul in _MATMULS)
    ]
    code = "\n".join(["", "", source_of_kernel("scores_that_wait"), "", "", *lines])
    return [AtStart(files=context.files, code=code.strip("\n"))]
