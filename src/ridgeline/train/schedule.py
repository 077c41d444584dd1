"""The learning rate over the steps of a run, which warms up and then follows one of five courses.

    warm-up    linear from η/W to η over the first W steps
    cosine     η_end + (η - η_end) (1 + cos πx)/2        Loshchilov and Hutter, arXiv 1608.03983
    linear     η + (η_end - η) x
    wsd        η until the last share of the steps, then linear to η_end     Hu et al., arXiv
               2404.06395, section 4.2; linear decay as in Hägele et al., arXiv 2405.18392
    step       η (η_end/η)^(k/n) after the k-th of n falls     He et al., arXiv
               1512.03385, section 3.4
    constant   η

x runs from 0 at the end of the warm-up to 1 at the last step, so that the last step has η_end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ridgeline.cost.learning_rate import linear_scaling, sqrt_scaling
from ridgeline.errors import InputError
from ridgeline.records.recipe import Recipe
from ridgeline.train.part import FilledModel, Part


class LearningRate(Part):
    """The learning rate of each step; made last, since other parts say where a course stands."""

    name = "learning_rate"

    def __init__(self, filled: FilledModel) -> None:
        self._recipe, self._optimizer = filled.recipe, filled.optimizer
        self._parts = tuple(filled.parts)
        self._course_steps = filled.recipe.course_steps
        self._rate = 0.0

    @classmethod
    def make(cls, filled: FilledModel) -> LearningRate:
        """Every run has one."""
        return cls(filled)

    def before_step(self, step: int) -> str:
        """Set the optimizer's rate."""
        assert self._course_steps is not None  # the session saw to it
        for part in self._parts:
            step = part.schedule_step(step)
        self._rate = learning_rate(step, self._course_steps, self._recipe)
        set_learning_rate(self._optimizer, self._rate)
        return ""

    def figures(self, steps: int, phases_by_rank: Sequence[Mapping[str, float]]) -> dict[str, Any]:
        """The rate of the last step."""
        del steps, phases_by_rank
        return {"learning_rate": self._rate}


def peak_learning_rate(recipe: Recipe) -> float:
    """The recipe's rate, scaled from its reference batch to the layout's batch.

    Raises:
        InputError: A scaling rule is named without the batch that it scales from.
    """
    return recipe.optimizer.learning_rate * _batch_factor(recipe)


def learning_rate(step: int, steps: int, recipe: Recipe) -> float:
    """The rate of a step.

    Args:
        step: From 0.
        steps: Of the whole run.
        recipe: Its optimizer says the course.
    """
    wanted = recipe.optimizer
    factor = _batch_factor(recipe)
    peak, end = wanted.learning_rate * factor, wanted.final_learning_rate * factor
    warmup = warmup_steps(steps, recipe)
    if step < warmup:
        return peak * (step + 1) / warmup
    if wanted.schedule == "constant":
        return peak
    if wanted.schedule == "step":
        fallen = sum(step >= round(share * steps) for share in wanted.falls_at)
        return peak * float((end / peak) ** (fallen / len(wanted.falls_at)))
    start = warmup
    if wanted.schedule == "wsd":
        start = max(warmup, steps - 1 - round(wanted.decay_share * steps))
    # A run whose last step is the first after the warm-up has no course: it ends there.
    x = min(1.0, max(0.0, (step - start) / (steps - 1 - start))) if start < steps - 1 else 1.0
    if wanted.schedule == "cosine":
        return end + (peak - end) * (1.0 + math.cos(math.pi * x)) / 2.0
    return peak + (end - peak) * x


def warmup_steps(steps: int, recipe: Recipe) -> int:
    """Steps of the warm-up.

    Raises:
        InputError: It takes the whole run.
    """
    warmup = recipe.optimizer.warmup_steps
    if warmup and warmup >= steps:
        raise InputError(
            f"recipe: optimizer.warmup_steps = {warmup} and the run has {steps} steps;"
            " set fewer warm-up steps (0: none) or train longer"
        )
    return warmup


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group its share of the rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("rate_share", 1.0)


def _batch_factor(recipe: Recipe) -> float:
    wanted = recipe.optimizer
    if wanted.batch_scaling == "none":
        return 1.0
    if wanted.reference_batch is None:
        raise InputError(
            f'recipe: optimizer.batch_scaling = "{wanted.batch_scaling}" needs'
            " optimizer.reference_batch: the sequences in the batch that learning_rate was found"
            " for"
        )
    rule = linear_scaling if wanted.batch_scaling == "linear" else sqrt_scaling
    return rule(1.0, wanted.reference_batch, recipe.layout.global_batch)
