"""The decision after every step to go on, to stop or to go back, which all ranks take alike.

Ranks agree on both one step late (`Agreement`), before every checkpoint and at the end at once,
so that no bad step is ever saved as a good one. Going back means that every rank ends with
code 75 and starts again from the last checkpoint, which is the way that every other failure
takes too: a second way in memory would cost a copy of the model and its optimizer, or prove itself
only on the day it is needed. The batch of the bad step stands in `skipped.jsonl`, which every start
reads.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev

import torch
import torch.distributed as dist
from torch import Tensor

from ridgeline.errors import RidgelineError
from ridgeline.records.recipe_survival import RecipeSurvive
from ridgeline.train.ranks import Ranks
from ridgeline.train.survive.events import SkippedBatch, skip, skipped_batches
from ridgeline.train.survive.stop import INTERRUPTED, TERMINATED, StopRequest

_WINDOW = 100
_FEWEST = 20
"""Losses that a standard deviation is taken from."""


class RollBack(Exception):
    """A step was bad: every rank is to start again from the last checkpoint."""

    def __init__(self, batch: SkippedBatch) -> None:
        super().__init__(f"step {batch.step + 1}: {batch.why}")
        self.batch = batch


@dataclass(frozen=True, slots=True)
class _Step:
    step: int
    samples: int
    targets: int
    norm: float | None
    loss: Tensor
    """On the host, once `copied` has happened."""
    copied: torch.cuda.Event | None


def _on_host(loss: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """A copy that nobody waits for; read one step later it is there."""
    if loss.device.type != "cuda":
        return loss, None
    copy = torch.empty(loss.shape, dtype=loss.dtype, pin_memory=True)
    copy.copy_(loss, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()
    return copy, copied


class Guard:
    """The judge of one rank's steps. Every rank must make one and call it alike."""

    def __init__(
        self,
        recipe: RecipeSurvive,
        ranks: Ranks,
        folder: Path,
        *,
        request: StopRequest | None = None,
        every: int = 1,
        norm_may_overflow: bool = False,
    ) -> None:
        """Begin at the start of a run.

        Args:
            recipe: Its `[survive]`.
            ranks: Those that agree.
            folder: Where the run lives.
            request: Knows whether and why this rank was asked to stop.
            every: Steps between agreements of ranks that train alone in between.
            norm_may_overflow: Loss scaling deals with such steps itself.
        """
        self.skipped = skipped_batches(folder)
        self._offsets = {batch.samples: batch for batch in self.skipped}
        self._recipe, self._folder = recipe, folder
        self._request, self._every = request, every
        self._norm_may_overflow = norm_may_overflow
        self._agreement = Agreement(ranks)
        self._spikes = Spikes(recipe.spike_deviations)
        self._copies = ranks.world // ranks.size("data")
        self._writes = ranks.rank == 0
        self._held: deque[_Step] = deque()
        """Steps whose loss is still on its way to the host."""
        self._under_way: deque[_Step] = deque()
        self._loss: Tensor = torch.zeros((), device=ranks.device)
        self._targets = 0
        self.stop = ""
        """Why the run ends after this step, the same on every rank; empty: it goes on."""

    def leaves_out(self, samples: int) -> SkippedBatch | None:
        """The batch that begins with this sample, if it is skipped."""
        return self._offsets.get(samples)

    def after_step(
        self, step: int, samples: int, loss: Tensor, targets: int, norm: float | None
    ) -> None:
        """Hand in a step, and learn how an earlier one went.

        Args:
            step: Optimizer steps done before it.
            samples: The first sample of its batch.
            loss: The sum of this rank's losses.
            targets: Target tokens of the step, of all ranks that gradients are summed over.
            norm: Of the gradients; the same on all ranks.

        Raises:
            RollBack: An earlier step was bad.
            RidgelineError: It was, and too many have been.
        """
        self._loss = self._loss + loss
        self._targets += targets
        if (step + 1) % self._every:
            return
        norm = None if self._norm_may_overflow else norm
        loss, copied = _on_host(self._loss)
        self._held.append(_Step(step, samples, self._targets, norm, loss, copied))
        self._loss, self._targets = torch.zeros_like(self._loss), 0
        if copied is None or len(self._held) > 1:
            self._exchange()

    def settle(self) -> None:
        """Learn now how the last step went: before a checkpoint, and at the end.

        Raises:
            RollBack: It was bad.
            RidgelineError: It was, and too many have been.
        """
        while self._held:
            self._exchange()
        self._judge(self._agreement.settle())

    def _exchange(self) -> None:
        held = self._held.popleft()
        if held.copied is not None:
            held.copied.synchronize()
        self._under_way.append(held)
        asked = "" if self._request is None else self._request.reason
        mine = [float(asked == INTERRUPTED), float(bool(asked) and asked != INTERRUPTED)]
        self._judge(self._agreement.exchange([*mine, float(held.loss) / self._copies]))

    def _judge(self, sums: list[float] | None) -> None:
        if sums is None:
            return
        judged = self._under_way.popleft()
        interrupted, terminated, loss = sums
        if interrupted or terminated:
            self.stop = INTERRUPTED if interrupted else TERMINATED
        if self._recipe.max_rollbacks == 0:
            return
        why = self._spikes.judge(loss / max(1, judged.targets), judged.norm)
        if why:
            self._go_back(SkippedBatch(step=judged.step, samples=judged.samples, why=why))

    def _go_back(self, batch: SkippedBatch) -> None:
        if len(self.skipped) >= self._recipe.max_rollbacks:
            raise RidgelineError(
                f"step {batch.step + 1}: {batch.why}, after {len(self.skipped)} batches were"
                " skipped for that (survive.max_rollbacks); look at the learning rate and the data"
            )
        if self._writes:
            skip(self._folder, batch)
        raise RollBack(batch)


class Agreement:
    """Sums over all ranks, known one step later and waited for never.

    After each step a rank hands in a few numbers and gets the sums of the step before. Their
    all-reduce runs on the host (gloo) while the next step computes, so agreeing costs no time and
    no wait for the device; all ranks learn the same sums at the same step. Every rank must make
    one and call it alike.
    """

    def __init__(self, ranks: Ranks) -> None:
        # A group of its own: the others' collectives are not queued behind it.
        self._group = dist.new_group(backend="gloo") if ranks.world > 1 else None
        self._under_way: tuple[torch.Tensor, dist.Work] | None = None

    def exchange(self, mine: Sequence[float]) -> list[float] | None:
        """Hand numbers in and get the sums of those handed in before; None: there were none.

        A run of one rank gets its own at once.
        """
        if self._group is None:
            return list(mine)
        earlier = self.settle()
        numbers = torch.tensor(mine, dtype=torch.float64)
        work = dist.all_reduce(numbers, group=self._group, async_op=True)
        assert work is not None
        self._under_way = (numbers, work)
        return earlier

    def settle(self) -> list[float] | None:
        """The sums that are still to come, now; None: there are none."""
        if self._under_way is None:
            return None
        numbers, work = self._under_way
        self._under_way = None
        work.wait()
        return list(numbers.tolist())


class Spikes:
    """A judge of losses in their order; those that it calls bad are not remembered.

    A spike lies far above the losses of late, measured in their own standard deviations. PaLM
    rolled back some 100 steps before each of about 20 spikes and skipped 200 to 500 batches
    (Chowdhery et al., arXiv 2204.02311, section 5.1); a number of standard deviations is the rule
    that needs no scale of the loss.
    """

    def __init__(self, deviations: float) -> None:
        """Take so many standard deviations for too many; 0: only what is no number is bad."""
        self._deviations = deviations
        self._window: deque[float] = deque(maxlen=_WINDOW)

    def judge(self, loss: float, gradient_norm: float | None) -> str:
        """Why a step is bad, in words; empty: it is not."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if gradient_norm is not None and not math.isfinite(gradient_norm):
            return f"the norm of the gradients is {gradient_norm}"
        if self._deviations > 0.0 and len(self._window) >= _FEWEST:
            mean = fmean(self._window)
            limit = mean + self._deviations * pstdev(self._window)
            if loss > limit:
                return f"the loss {loss:.4g} is above {limit:.4g} (mean of late {mean:.4g})"
        self._window.append(loss)
        return ""
