"""All tensors of one operation in one call, for optimizers that have no fused kernel.

On CUDA it is PyTorch's default. On a CPU the default is a Python loop over parameters, and the
lists pay where tensors are many and small: the loop over them is then C++ and not Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records.edits import Edit, SetArgument
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl

if TYPE_CHECKING:
    import torch

CARD = Card(
    name="foreach-optimizer",
    title="Optimizer over lists of tensors",
    cures=("unfused-optimizer",),
    costs="Temporaries of the size of all parameters.",
    source="PyTorch documentation, torch.optim, choosing between for-loop, foreach and fused",
    equivalence="rounding",
    stage=Stage.OPTIMIZER,
)

_MOST = 16_384
"""Parameters per tensor, on average, beyond which the loop's own cost is not felt."""
_WITHOUT_FUSED = ("RMSprop", "NAdam", "RAdam", "Adamax", "Adadelta", "ASGD", "Rprop")


def applies(context: Context) -> Applicability:
    """Many small tensors, stepped by an optimizer without a fused kernel."""
    candidates = [o for o in context.profile.optimizers if o.name in _WITHOUT_FUSED]
    if not candidates:
        return Applicability(False, "no optimizer that has a foreach form but no fused one")
    if context.device != "cpu":
        return Applicability(False, f"on {context.device} it is PyTorch's default")
    if all(o.foreach for o in candidates):
        return Applicability(False, "already over lists")
    sizes = [o.num_parameters / max(o.num_parameter_tensors, 1) for o in candidates]
    if min(sizes) > _MOST:
        return Applicability(False, "the tensors are too large to gain by it")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """Up to twice as fast on tensors of a few hundred elements."""
    return amdahl(context.phase_share("optimizer"), 1.0, 2.0)


def apply(points: Points, options: Options) -> Undo:
    """Set `foreach` before the optimizer's first step."""
    changed = 0

    def use_lists(optimizer: torch.optim.Optimizer) -> None:
        nonlocal changed
        groups = [
            group
            for group in optimizer.param_groups
            if "foreach" in group and not group["foreach"] and not group.get("differentiable")
        ]
        if type(optimizer).__name__ not in _WITHOUT_FUSED or not groups:
            return
        for group in groups:
            group["foreach"] = True
        changed += 1
        points.changed(CARD.name, f"{changed} optimizer(s) step over lists")

    points.on_optimizer.append(use_lists)
    return lambda: points.on_optimizer.remove(use_lists)


def edits(context: Context, options: Options) -> list[Edit]:
    """`foreach=True` where the optimizer is made."""
    return [
        SetArgument(site=o.site, callee=o.name, keyword="foreach", value="True")
        for o in context.profile.optimizers
        if o.site is not None and o.name in _WITHOUT_FUSED and not o.foreach
    ]
