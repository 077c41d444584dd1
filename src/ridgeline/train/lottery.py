"""Lottery tickets are found in rounds: train, prune, go back to the early weights, train again.

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

import torch

from ridgeline.records.recipe_compression import RecipeLottery
from ridgeline.train.optimizers.build import named_parameters
from ridgeline.train.optimizers.shards import local
from ridgeline.train.part import FilledModel, PartState
from ridgeline.train.pruning import MaskedTraining, masks_of


class Lottery(MaskedTraining):
    """The rounds of training and rewinding that `[lottery]` of a recipe asks for."""

    name = "lottery"

    def __init__(self, filled: FilledModel, wanted: RecipeLottery, course_steps: int) -> None:
        """Begin with all weights; a course has `course_steps`."""
        super().__init__(masks_of(filled))
        self._wanted = wanted
        self.course_steps = course_steps
        self._optimizer = filled.optimizer
        self._shadows = [part.shadows() for part in filled.parts]
        self._weights = {
            name: one.detach()
            for name, one in named_parameters(filled.modules)
            if one.requires_grad
        }
        self._early = {name: one.clone() for name, one in self._weights.items()}

    @classmethod
    def make(cls, filled: FilledModel) -> Lottery | None:
        """`[lottery]` of the recipe."""
        wanted, course_steps = filled.recipe.lottery, filled.recipe.course_steps
        if wanted is None:
            return None
        assert course_steps is not None  # `check` saw to it
        return cls(filled, wanted, course_steps)

    def schedule_step(self, step: int) -> int:
        """Let the learning rate follow each course from where it is rewound to."""
        if step < self.course_steps:
            return step
        again = self.course_steps - self._wanted.rewind_step
        return self._wanted.rewind_step + (step - self.course_steps) % again

    def wants_evaluation(self, done: int) -> bool:
        """Ask for the loss at the end of each course: a round is judged by the one before it."""
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
        for shadow in self._shadows:
            for name, follower in shadow.items():
                local(follower).copy_(local(self._weights[name]))
        return f"round {number}: {share:.1%} zeros, back to step {self._wanted.rewind_step}"

    def state_dict(self) -> PartState:
        """The masks, and the weights to go back to."""
        early = {f"early/{name}": weight for name, weight in self._early.items()}
        return PartState(placed=super().state_dict().placed | early)

    def _begins_round(self, step: int) -> int:
        """The round that begins with this step; 0: none."""
        over = step - self.course_steps
        again = self.course_steps - self._wanted.rewind_step
        return 1 + over // again if over >= 0 and over % again == 0 else 0

    def _forget(self) -> None:
        self._optimizer.state.clear()
        for group in self._optimizer.param_groups:
            group["updates"] = 0
