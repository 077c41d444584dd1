"""Forward and backward of a pipeline: micro-batches through its stages, in a schedule's order.

    layout.schedule   chunks (vpp)   torch's schedule
    gpipe             1              GPipe                  Huang et al., arXiv 1811.06965
                      more           LoopedBFS              Lamy-Poirier, arXiv 2211.05953
    1f1b              1              1F1B                   Narayanan et al., arXiv 2104.04473
    interleaved,      more           Interleaved1F1B        the same, section 2.2
    1f1b
    zero-bubble       1 or over 2    InterleavedZeroBubble  Qi et al., arXiv 2401.10241
                      2              ZBVZeroBubble          Qi et al., arXiv 2405.15362

`stages.py` makes the stages. Hidden states travel between them in one shape and type that both
sides know beforehand. The last stage computes the losses; every rank of the pipeline learns them.
Where the head shares the embedding's matrix, the gradients of its two copies are added after the
last micro-batch, on both sides in the same way, so that the copies stay equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor import DTensor

from ridgeline.errors import InputError
from ridgeline.records.layout import Layout
from ridgeline.records.recipe import Recipe
from ridgeline.train.batch import Batch
from ridgeline.train.parallel.stages import StagePlace, cut, rank_of_stage
from ridgeline.train.ranks import Ranks

__all__ = ["PipelinePasses", "check_schedule", "cut"]

TokenLoss = Callable[[Tensor, Tensor], Tensor]
"""Logits and labels to the sum of losses over the targets."""


class PipelinePasses:
    """`Passes` of a model whose layers are spread over the `pp` ranks."""

    def __init__(
        self,
        stages: Sequence[nn.Module],
        recipe: Recipe,
        ranks: Ranks,
        token_loss: TokenLoss,
        *,
        autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
        scale: Callable[[Tensor], Tensor] = lambda loss: loss,
    ) -> None:
        """Begin with stages that are parallel and filled already.

        Args:
            stages: What `cut` made for this rank.
            recipe: For its layout and its sequence length.
            ranks: This process's place.
            token_loss: Sum of token losses of a micro-batch.
            autocast: Entered around each forward pass; FSDP2 casts by itself.
            scale: Applied to what backward starts from (loss scaling of fp16).
        """
        layout = recipe.layout
        check_schedule(layout)
        self._stages = list(stages)
        self._layout = layout
        self._ranks = ranks
        self._token_loss = token_loss
        self._autocast = autocast
        self._scale = scale
        self._share = 1.0
        self._total = torch.zeros((), device=ranks.device)
        self._places: list[StagePlace] = [stage.stage_place for stage in self._stages]
        self._hidden_type = _computed_type(self._stages)
        width = self._stages[0].config.hidden_size
        self._hidden_shape = (layout.micro_batch, recipe.text.seq // layout.cp, width)
        self._schedule = self._make_schedule()
        for stage, place in zip(self._stages, self._places, strict=True):
            if place.repeats:
                # `loop.py` counts this parameter on the first stage.
                stage.get_parameter(place.repeats).counted_elsewhere = True

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The stages that this rank runs."""
        return self._stages

    def run(self, batches: Sequence[Batch], num_targets: int) -> Tensor:
        """Run all micro-batches through the schedule, as `Passes.run` says."""
        self._share = 1.0 / max(1, num_targets)
        self._total = torch.zeros((), device=self._ranks.device)
        given: dict[str, Any] = {
            "position_ids": torch.cat([batch.position_ids for batch in batches]),
            "return_outputs": False,
        }
        inputs: tuple[Tensor, ...] = ()
        if any(place.is_first for place in self._places):
            inputs = (torch.cat([batch.input_ids for batch in batches]),)
        if any(place.is_last for place in self._places):
            given["target"] = torch.cat([batch.labels for batch in batches])
        try:
            self._schedule.step(*inputs, **given)
        except RuntimeError as error:
            # torch wraps what a stage's forward raises.
            if isinstance(error.__cause__, InputError):
                raise error.__cause__ from None
            raise
        self._add_tied_gradients()
        return self._agreed(self._total)

    def evaluate(self, batch: Batch) -> Tensor:
        """Pass one micro-batch from stage to stage, forward alone, as `Passes.evaluate` says."""
        loss = torch.zeros((), device=self._ranks.device)
        state: Tensor | None = None
        by_index = dict(zip((one.index for one in self._places), self._stages, strict=True))
        with torch.no_grad():
            for index in sorted(by_index):
                place: StagePlace = by_index[index].stage_place
                given = batch.input_ids if place.is_first else self._received(index, batch, state)
                with self._autocast():
                    state = by_index[index](given, position_ids=batch.position_ids)
                _reshard(by_index[index])
                if place.is_last:
                    loss += self._token_loss(state, batch.labels)
                elif self._rank_of(index + 1) != self._ranks.index("pp"):
                    dist.send(
                        state.to(self._hidden_type).contiguous(),
                        group=self._ranks.group("pp"),
                        group_dst=self._rank_of(index + 1),
                    )
        return self._agreed(loss)

    def _make_schedule(self) -> Any:
        stages = [self._pipeline_stage(stage) for stage in self._stages]
        given: dict[str, Any] = {
            "n_microbatches": self._layout.num_microbatches,
            "loss_fn": self._loss,
            "scale_grads": False,
        }
        kind = schedule_class(self._layout)
        if issubclass(kind, schedules.PipelineScheduleSingle):
            return kind(stages[0], **given)
        return kind(stages, **given)

    def _pipeline_stage(self, stage: nn.Module) -> PipelineStage:
        place: StagePlace = stage.stage_place
        hidden = torch.empty(
            self._hidden_shape, dtype=self._hidden_type, device="meta", requires_grad=True
        )
        tokens = torch.empty(self._hidden_shape[:2], dtype=torch.int64, device="meta")
        made = _Stage(
            stage,
            place.index,
            place.count,
            self._ranks.device,
            input_args=tokens if place.is_first else hidden,
            # What the last stage gives goes nowhere.
            output_args=hidden,
            group=self._ranks.group("pp"),
        )
        made.around_forward = self._autocast
        made.hidden_type = self._hidden_type
        return made

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        loss = self._token_loss(logits, labels)
        self._total += loss.detach()
        return self._scale(loss * self._share)

    def _rank_of(self, stage: int) -> int:
        return rank_of_stage(self._layout, stage)

    def _received(self, index: int, batch: Batch, state: Tensor | None) -> Tensor:
        """The hidden state of the stage before, from its rank or from this one."""
        source = self._rank_of(index - 1)
        if source == self._ranks.index("pp"):
            assert state is not None
            return state.to(self._hidden_type)
        # Validation may have other micro-batches than training.
        shape = (*batch.input_ids.shape, self._hidden_shape[-1])
        hidden = torch.empty(shape, dtype=self._hidden_type, device=self._ranks.device)
        dist.recv(hidden, group=self._ranks.group("pp"), group_src=source)
        return hidden

    def _agreed(self, loss: Tensor) -> Tensor:
        """The last stage's loss over whole sequences, on every rank of the pipeline."""
        if self._ranks.size("cp") > 1:
            dist.all_reduce(loss, group=self._ranks.group("cp"))
        last = self._rank_of(self._places[0].count - 1)
        dist.broadcast(loss, group=self._ranks.group("pp"), group_src=last)
        return loss

    def _add_tied_gradients(self) -> None:
        tied = self._places[0].tied
        count = self._places[0].count
        ends = [
            stage.get_parameter(tied)
            for stage, place in zip(self._stages, self._places, strict=True)
            if tied and (place.is_first or place.is_last)
        ]
        if not ends or not ends[0].requires_grad:
            return
        gradients = [_local_gradient(parameter) for parameter in ends]
        if len(gradients) == 2:
            total = gradients[0] + gradients[1]
            for gradient in gradients:
                gradient.copy_(total)
            return
        mine, group = gradients[0].contiguous(), self._ranks.group("pp")
        other = torch.empty_like(mine)
        here = self._ranks.index("pp")
        peer = next(one for one in (self._rank_of(0), self._rank_of(count - 1)) if one != here)
        exchange = [
            dist.P2POp(dist.isend, mine, group=group, group_peer=peer),
            dist.P2POp(dist.irecv, other, group=group, group_peer=peer),
        ]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
        gradients[0].add_(other)


class _Stage(PipelineStage):
    """A stage whose forward pass is cast, and whose output has the type that travels."""

    around_forward: Callable[[], AbstractContextManager[object]]
    hidden_type: torch.dtype

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Tensor:
        """Run the stage as torch's does, cast on the way."""
        with self.around_forward():
            output = super().forward_maybe_with_nosync(*args, **kwargs)
        return output if self.is_last else output.to(self.hidden_type)


def schedule_class(layout: Layout) -> Any:
    """Torch's class of the layout's schedule.

    >>> schedule_class(Layout(pp=2, schedule="zero-bubble")).__name__
    'ScheduleInterleavedZeroBubble'
    """
    several = layout.vpp > 1
    match layout.schedule:
        case "gpipe":
            return schedules.ScheduleLoopedBFS if several else schedules.ScheduleGPipe
        case "1f1b" | "interleaved":
            return schedules.ScheduleInterleaved1F1B if several else schedules.Schedule1F1B
        case "zero-bubble":
            if layout.vpp == 2:
                return schedules.ScheduleZBVZeroBubble
            return schedules.ScheduleInterleavedZeroBubble


def check_schedule(layout: Layout) -> None:
    """Refuse micro-batches that the schedule cannot run.

    Raises:
        InputError: Too few micro-batches, or not a multiple of its rounds.
    """
    found, pp = layout.num_microbatches, layout.pp
    kind = schedule_class(layout)
    cure = "change global_batch, micro_batch, dp or pp"
    if kind is schedules.Schedule1F1B and found < pp:
        raise InputError(
            f"layout: schedule {layout.schedule!r} needs at least pp = {pp} micro-batches and the"
            f" global batch gives {found}; {cure}"
        )
    rounds = max(1, found // pp)
    looped = (schedules.ScheduleInterleaved1F1B, schedules.ScheduleInterleavedZeroBubble)
    if kind in looped and found % rounds:
        raise InputError(
            f"layout: schedule {layout.schedule!r} runs pp = {pp} micro-batches a round and"
            f" {found} do not divide into {rounds} rounds; {cure}"
        )


def _computed_type(stages: Sequence[nn.Module]) -> torch.dtype:
    """The dtype in which embeddings, and with them the residual stream, are computed.

    FSDP2 casts parameters before use; autocast leaves them, and the residual stream, as they are.
    """
    for stage in stages:
        if isinstance(stage, FSDPModule):
            cast: torch.dtype | None = stage._get_fsdp_state()._mp_policy.param_dtype
            if cast is not None:
                return cast
    parameters = (one for stage in stages for one in stage.parameters())
    return next(one.dtype for one in parameters if one.is_floating_point())


def _local_gradient(parameter: nn.Parameter) -> Tensor:
    """This rank's part of a gradient, cut as the parameter is.

    The embedding's may lie otherwise when it arrives: each rank adds up what its rows are looked
    up for.
    """
    gradient = parameter.grad
    assert gradient is not None
    if not isinstance(gradient, DTensor):
        return gradient
    assert isinstance(parameter, DTensor)
    if gradient.placements != parameter.placements:
        gradient = gradient.redistribute(placements=parameter.placements)
        parameter.grad = gradient
    return gradient.to_local()


def _reshard(stage: nn.Module) -> None:
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
