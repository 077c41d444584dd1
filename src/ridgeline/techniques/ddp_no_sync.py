"""Reduce gradients once per optimizer step, not once per accumulated micro-batch.

DistributedDataParallel reduces in every backward unless told not to (`no_sync`). The number of
backwards between two optimizer steps is learned from the script's first cycle; from then on only
the last backward of a cycle reduces. A cycle that turns out shorter (the end of an epoch) is
reduced just before its step, so that the ranks never drift apart.

Sum of averages and average of sums are equal but for rounding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records.edits import Edit, WrapWith
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl

if TYPE_CHECKING:
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

CARD = Card(
    name="ddp-no-sync",
    title="No gradient reduction between accumulated micro-batches",
    cures=("missing-no-sync", "exposed-communication"),
    costs="The script's number of micro-batches per step must stay the same.",
    source="PyTorch documentation, DistributedDataParallel.no_sync",
    equivalence="rounding",
    stage=Stage.COMMUNICATION,
)


def applies(context: Context) -> Applicability:
    """DDP that reduces more often than the optimizer steps."""
    if not context.data_parallel_models:
        return Applicability(False, "no model is wrapped in DistributedDataParallel")
    if context.profile.world_size < 2:
        return Applicability(False, "one process has nobody to reduce gradients with")
    if len(context.profile.optimizers) > 1:
        return Applicability(False, "several optimizers step: whose gradients wait is unclear")
    backwards = context.profile.settings.backwards_per_step
    if backwards < 1.5:
        return Applicability(False, "gradients are not accumulated")
    if not context.profile.habit("collective").calls:
        return Applicability(False, "no reduction was seen")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """All reductions but one per step go."""
    cycles = max(context.profile.settings.backwards_per_step, 1.0)
    return amdahl(context.phase_share("communication", "backward"), 1.0, min(cycles, 3.0))


def apply(points: Points, options: Options) -> Undo:
    """Decide before each forward whether its backward reduces."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    cycle = Cycle(points)
    points.around_forward.append(cycle.around_forward)
    points.around_backward.append(cycle.around_backward)
    handle = register_optimizer_step_pre_hook(cycle.before_step)

    def undo() -> None:
        points.around_forward.remove(cycle.around_forward)
        points.around_backward.remove(cycle.around_backward)
        handle.remove()
        cycle.reduce_always()

    return undo


class Cycle:
    """Where the script is between two optimizer steps."""

    def __init__(self, points: Points) -> None:
        self._points = points
        self._length = 0
        """Backwards per optimizer step; 0 until the first cycle has ended."""
        self._backwards = 0
        self._wrapper: DistributedDataParallel | None = None
        self._unreduced: DistributedDataParallel | None = None
        """The wrapper whose gradients are this rank's own so far."""

    def around_forward(self, module: nn.Module) -> AbstractContextManager[Any]:
        """Set the wrapper's own switch, which its backward obeys."""
        import torch
        from torch.nn.parallel import DistributedDataParallel

        if not isinstance(module, DistributedDataParallel) or not torch.is_grad_enabled():
            return contextlib.nullcontext()
        reduces = not self._length or self._backwards >= self._length - 1
        self._wrapper = module
        module.require_backward_grad_sync = reduces
        if not reduces:
            self._unreduced = module
            self._points.changed(CARD.name, f"gradients reduced in 1 backward of {self._length}")
        else:
            self._unreduced = None
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def around_backward(self) -> Iterator[None]:
        """Count the backwards of a step."""
        yield
        self._backwards += 1

    def before_step(self, *_: Any) -> None:
        """The cycle is over; if it was a short one, reduce what was not."""
        if self._backwards == 0:
            return
        if self._unreduced is not None:
            _average(self._unreduced)
            self._unreduced = None
        self._length = self._length or self._backwards
        self._backwards = 0

    def reduce_always(self) -> None:
        """Leave the wrapper as it was made."""
        if self._wrapper is not None:
            self._wrapper.require_backward_grad_sync = True


def _average(wrapper: DistributedDataParallel) -> None:
    import torch.distributed as dist

    world = dist.get_world_size(wrapper.process_group)
    for parameter in wrapper.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=wrapper.process_group)
            parameter.grad /= world


def edits(context: Context, options: Options) -> list[Edit]:
    """`no_sync()` around forward and backward, but in the pass that steps."""
    model, switches = context.profile.models[0], context.profile.settings
    step_site = context.profile.optimizers[0].step_site
    if model.forward_site is None or step_site is None or switches.backward_site is None:
        return []
    return [
        WrapWith(
            site=model.forward_site,
            header="contextlib.nullcontext() if {condition} else {model}.no_sync()",
            through=switches.backward_site,
            stepping=step_site,
        )
    ]
