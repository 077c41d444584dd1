"""Inference without the bookkeeping of gradients.

With gradients enabled every operator notes what its backward would need, and activations stay
alive until the outputs are dropped. Inference mode also leaves out views' and versions' counts;
the numbers are the same. A tensor made in it cannot be changed in place outside: a script that
does so fails in its measurement, and the technique is not kept.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records.edits import Edit, WrapWith
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl

if TYPE_CHECKING:
    from torch import nn

CARD = Card(
    name="inference-mode",
    title="Inference mode",
    cures=("gradients-in-inference",),
    costs="Outputs cannot be changed in place outside of it, nor be part of a backward.",
    source="PyTorch documentation, torch.inference_mode; notes on autograd mechanics",
    equivalence="bit-equal",
    stage=Stage.SETTINGS,
    breaks_with=("nference tensor",),
)


def applies(context: Context) -> Applicability:
    """An inference script whose forwards record gradients."""
    if context.profile.kind != "inference":
        return Applicability(False, "the script trains")
    if not context.profile.settings.records_gradients:
        return Applicability(False, "gradients are off already")
    if context.phase_share("backward"):
        return Applicability(False, "the script asks for gradients")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """Some microseconds per operator, and the memory that activations no longer take."""
    share = context.phase_share("forward")
    return amdahl(share, 1.0, 1.1 + 0.3 * context.profile.small_operator_share)


def apply(points: Points, options: Options) -> Undo:
    """Hold inference mode during each outermost forward."""
    import torch

    def around(module: nn.Module) -> AbstractContextManager[Any]:
        if torch.is_grad_enabled():
            points.changed(CARD.name, "forwards run in inference mode")
        return torch.inference_mode()

    points.around_forward.append(around)
    return lambda: points.around_forward.remove(around)


def edits(context: Context, options: Options) -> list[Edit]:
    """`with torch.inference_mode():` around each model's call."""
    sites = dict.fromkeys(m.forward_site for m in context.profile.models if m.forward_site)
    return [WrapWith(site=site, header="torch.inference_mode()") for site in sites]
