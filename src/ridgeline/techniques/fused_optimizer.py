"""One fused kernel steps all parameters, in place of one small kernel per tensor and operation.

The optimizer's mathematics is unchanged; the order of roundings is not, so losses agree to
rounding. On a CPU the default is a Python loop over tensors; on CUDA it is `foreach`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records.edits import Edit, FirstOf, SetArgument
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl, trainer_setting

if TYPE_CHECKING:
    import torch

CARD = Card(
    name="fused-optimizer",
    title="Fused optimizer step",
    cures=("unfused-optimizer",),
    costs="Nothing; needs floating-point parameters on one kind of device.",
    source="PyTorch documentation, torch.optim.AdamW, argument `fused`",
    equivalence="rounding",
    stage=Stage.OPTIMIZER,
)


def applies(context: Context) -> Applicability:
    """Some optimizer could be fused and is not."""
    optimizers = context.profile.optimizers
    if not optimizers:
        return Applicability(False, "no optimizer stepped")
    if all(o.fused for o in optimizers):
        return Applicability(False, "already fused")
    if not any(o.supports_fused and not o.fused for o in optimizers):
        names = ", ".join(sorted({o.name for o in optimizers}))
        return Applicability(False, f"{names} has no fused form")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """The optimizer's phase shrinks: most where a Python loop over many operations goes."""
    share = context.phase_share("optimizer")
    if all(o.name == "SGD" for o in context.profile.optimizers):
        return amdahl(share, 1.0, 1.8)
    if context.device == "cuda":  # where `foreach` was the default
        return amdahl(share, 1.1, 2.5)
    return amdahl(share, 1.5, 5.0)


def apply(points: Points, options: Options) -> Undo:
    """Set `fused` on every optimizer before its first step."""
    changed: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = []

    def fuse(optimizer: torch.optim.Optimizer) -> None:
        groups = [g for g in optimizer.param_groups if "fused" in g and not g["fused"]]
        parameters = [p for group in groups for p in group["params"]]
        if not groups or not all(map(_can_be_fused, parameters)):
            return
        settings = [{"fused": g["fused"], "foreach": g["foreach"]} for g in groups]
        changed.append((groups, settings))
        for group in groups:
            group.update(fused=True, foreach=False)
        for parameter in parameters:
            step = optimizer.state[parameter].get("step")
            if step is not None and step.device != parameter.device:  # from a checkpoint
                optimizer.state[parameter]["step"] = step.to(parameter.device)
        points.changed(CARD.name, f"{len(changed)} optimizer(s) fused")

    points.on_optimizer.append(fuse)

    def undo() -> None:
        points.on_optimizer.remove(fuse)
        for groups, settings in changed:
            for group, before in zip(groups, settings, strict=True):
                group.update(before)

    return undo


def _can_be_fused(parameter: torch.Tensor) -> bool:
    dense = parameter.grad is None or not parameter.grad.is_sparse
    return parameter.is_floating_point() and dense


def edits(context: Context, options: Options) -> list[Edit]:
    """`fused=True` where the optimizer is made."""
    setting = trainer_setting(context, "optim", '"adamw_torch_fused"')
    return [
        FirstOf(
            edits=(
                SetArgument(site=o.site, callee=o.name, keyword="fused", value="True"),
                *(setting if o.name == "AdamW" else ()),
            )
        )
        for o in context.profile.optimizers
        if o.site is not None and o.supports_fused and not o.fused
    ]
