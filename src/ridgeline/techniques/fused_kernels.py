"""Norms, gated MLPs, rotary embeddings, attention and the loss as Triton kernels, both ways.

Written step by step they read and write every activation several times; models of transformers
write them so. The loss is computed with its logits, of which never more than an eighth exists; of
attention, what such a model writes out (`eager`) is taken, and what calls torch's is left to it.
The script's model stays as it is: calls of the modules that are recognised, and that agree with
the kernels on random numbers, go to the kernels.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records.edits import AtStart, Edit, FirstOf, InsertBefore
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl

if TYPE_CHECKING:
    from torch import nn

CARD = Card(
    name="fused-kernels",
    title="Norms, gates, rotary embeddings, attention and loss as fused kernels",
    cures=("unfused-elementwise", "unfused-attention"),
    costs="Numbers are rounded once where the model rounds at every step; a patched script imports "
    "Ridgeline.",
    source="Hsu et al., Liger Kernel, 2410.10989; Dao, FlashAttention-2, 2307.08691",
    equivalence="rounding",
    stage=Stage.SETTINGS,
)

_MARKS = ("aten::rsqrt", "aten::native_layer_norm", "aten::silu", "aten::gelu")
"""Operators of norms and gates alone."""
_PARTS = (
    *_MARKS, "aten::native_layer_norm_backward", "aten::silu_backward", "aten::gelu_backward",
    "aten::pow", "aten::mean", "aten::mul", "aten::add", "aten::neg", "aten::cat", "aten::sum",
    "aten::_to_copy", "aten::_log_softmax", "aten::_log_softmax_backward_data",
    "aten::nll_loss_forward", "aten::nll_loss_backward", "aten::_softmax",
    "aten::_softmax_backward_data",
)  # fmt: skip
"""What they are made of, among others."""


def applies(context: Context) -> Applicability:
    """Training on a GPU that spends a part of its time in norms, gates and what they consist of."""
    profile = context.profile
    if profile.kind == "inference":
        return Applicability(False, "the script does not train")
    if context.device != "cuda":
        return Applicability(False, f"Triton kernels need a GPU; the model is on {context.device}")
    if any(model.compiled for model in profile.models) or profile.settings.graph_compiles:
        return Applicability(False, "the script compiles, which fuses them already")
    if profile.models[0].wrapper == "FullyShardedDataParallel":
        return Applicability(False, "fully sharded parameters are not where kernels look for them")
    if importlib.util.find_spec("triton") is None:
        return Applicability(False, "triton is not installed, which comes with torch for GPUs")
    if context.operator_share(*_MARKS) == 0:
        return Applicability(False, "no norms and no gated activations were seen")
    share = context.operator_share(*_PARTS)
    if share < 0.02:
        return Applicability(False, f"norms and gates take {share:.1%} of a step")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """One pass over memory is left of several; not all of these operators are fused."""
    return amdahl(context.operator_share(*_PARTS), 1.1, 4.0)


def apply(points: Points, options: Options) -> Undo:
    """Redirect the calls of the modules of each outermost model."""
    undos: list[Undo] = []

    def fuse(module: nn.Module) -> None:
        from ridgeline.kernels.fused_modules import fuse_modules, left_alone

        found, undo = fuse_modules(module)
        undos.append(undo)
        if found:
            taken = ", ".join(f"{count} {kind}" for kind, count in found.items())
            left = ", ".join(f"{count} {what}" for what, count in left_alone(module).items())
            points.changed(CARD.name, f"{taken}; left alone: {left}" if left else taken)

    points.on_model.append(fuse)

    def undo() -> None:
        points.on_model.remove(fuse)
        for one in reversed(undos):
            one()

    return undo


def edits(context: Context, options: Options) -> list[Edit]:
    """One call before the optimizer is made, or before the loop."""
    code = "fuse_modules({model})"
    sites = [o.site for o in context.profile.optimizers if o.site is not None]
    places: list[Edit] = [InsertBefore(site=site, code=code) for site in sites[:1]]
    forward = context.profile.models[0].forward_site
    if forward is not None:
        places.append(InsertBefore(site=forward, code=code, outside_loops=True))
    if not places:
        return []
    line = "from ridgeline.kernels.fused_modules import fuse_modules"
    return [AtStart(files=context.files, code=line), FirstOf(edits=tuple(places))]
