"""Drop gradients between steps instead of filling them with zeros.

Zeroing writes every gradient once, and the backward then reads it again to add to it. A parameter
that gets no gradient in some step is then left alone by the optimizer, where a gradient of zero
would still have moved it by momentum and weight decay; the comparison of losses shows it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo, in_reverse, patch
from ridgeline.records.edits import Edit, ReplaceCall
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl

CARD = Card(
    name="set-to-none",
    title="Gradients set to None",
    cures=("zero-grad-in-place",),
    costs="`p.grad` is None between zero_grad and backward.",
    source="PyTorch documentation, torch.optim.Optimizer.zero_grad",
    equivalence="bit-equal",
    stage=Stage.MEMORY,
)


def applies(context: Context) -> Applicability:
    """Some optimizer's gradients were zeroed in place."""
    if not any(o.zeroes_in_place for o in context.profile.optimizers):
        return Applicability(False, "no gradients were zeroed in place")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """Three passes over the gradients less: two to fill and read, one to add."""
    weights = sum(4 * o.num_parameters for o in context.profile.optimizers if o.zeroes_in_place)
    bandwidth = context.ceilings.bandwidth_bytes_per_second if context.ceilings else 20e9
    share = 3 * weights / bandwidth / context.profile.step_seconds.mean
    return amdahl(share, 1.5, 4.0)


def apply(points: Points, options: Options) -> Undo:
    """Overrule `set_to_none=False`, in optimizers and in modules."""

    def overruling(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def zero(owner: Any, set_to_none: bool = True) -> None:
            if not set_to_none:
                points.changed(CARD.name, "zero_grad sets gradients to None")
            original(owner, True)

        return zero

    names = ("torch.optim:Optimizer.zero_grad", "torch.nn:Module.zero_grad")
    return in_reverse([patch(name, overruling) for name in names])


def edits(context: Context, options: Options) -> list[Edit]:
    """`zero_grad()` wherever it is told to keep the tensors."""
    return [
        ReplaceCall(
            files=context.files,
            callee="zero_grad",
            passing="set_to_none",
            code="{func}({args})",
            drop=("set_to_none",),
        )
    ]
