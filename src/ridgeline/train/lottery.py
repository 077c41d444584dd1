"""Lottery tickets: train, prune, go back to how the weights were early on, train again.

Frankle and Carbin (arXiv 1803.03635) go back to the start; with larger networks it takes a step
somewhat later (arXiv 1912.05671, "rewinding"). With L steps of a course, rewinding to k and R
rounds, a run has L + R (L - k) steps:

    steps    0 ─────── k ──────────────── L           dense; weights at k are kept
                       k ──────────────── L           after round 1, with a mask
                       k ──────────────── L           …

The learning rate follows each course; the optimizer begins every round without memories; the text
goes on. Each round removes the same share of what is left.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ridgeline.records.recipe import Recipe
from ridgeline.train.averaging import WeightAverage
from ridgeline.train.optimizers.build import named_parameters
from ridgeline.train.optimizers.shards import ShardedOptimizer, local
from ridgeline.train.pruning import Masks


class Lottery:
    """The `[lottery]` of a recipe."""

    def __init__(
        self,
        parts: Sequence[nn.Module],
        recipe: Recipe,
        optimizer: ShardedOptimizer,
        average: WeightAverage | None,
    ) -> None:
        """Around the filled model and what follows its weights."""
        assert recipe.lottery is not None
        assert recipe.course_steps is not None  # `check` saw to it
        self._wanted = recipe.lottery
        self.course_steps = recipe.course_steps
        self._optimizer, self._average = optimizer, average
        self.masks = Masks(parts)
        self._weights = {
            name: one.detach() for name, one in named_parameters(parts) if one.requires_grad
        }
        self._early = {name: one.clone() for name, one in self._weights.items()}

    def course_step(self, step: int) -> int:
        """The place of a step in its course, which the learning rate follows."""
        if step < self.course_steps:
            return step
        again = self.course_steps - self._wanted.rewind_step
        return self._wanted.rewind_step + (step - self.course_steps) % again

    def ends_course(self, done: int) -> bool:
        """Whether a course is over after so many steps."""
        return done >= self.course_steps and self._begins_round(done) > 0

    @torch.no_grad()
    def before_step(self, step: int) -> str:
        """Keep the early weights, or prune and go back to them, if it is time."""
        if step == self._wanted.rewind_step:
            for name, weight in self._weights.items():
                local(self._early[name]).copy_(local(weight))
        number = self._begins_round(step)
        if not number:
            return ""
        share = 1.0 - (1.0 - self._wanted.share) ** (number / self._wanted.rounds)
        self.masks.choose(share)
        for name, weight in self._weights.items():
            local(weight).copy_(local(self._early[name]))
        self._forget()
        self.masks.apply()
        self._restart_average()
        return f"round {number}: {share:.1%} zeros, back to step {self._wanted.rewind_step}"

    def state_dict(self) -> dict[str, Tensor]:
        """For checkpoints."""
        early = {f"early/{name}": weight for name, weight in self._early.items()}
        return self.masks.state_dict() | early

    def _begins_round(self, step: int) -> int:
        """The round that begins with this step; 0: none."""
        over = step - self.course_steps
        again = self.course_steps - self._wanted.rewind_step
        return 1 + over // again if over >= 0 and over % again == 0 else 0

    def _forget(self) -> None:
        self._optimizer.state.clear()
        for group in self._optimizer.param_groups:
            group["updates"] = 0

    def _restart_average(self) -> None:
        if self._average is None:
            return
        for name, average in self._average.state_dict().items():
            local(average).copy_(local(self._weights[name]))
