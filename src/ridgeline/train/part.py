"""One technique of a training run is one `Part` in one file; the loop asks each at fixed points.

    before any process starts   the `check` of its table in `records/recipe.py`
    on the empty model          shape, then prepare for each module that this rank holds
    once the model is filled    make
    in a step                   before_step, around_forward, before_update, after_update
    beside the steps            around_evaluation, finish, figures for the log
    at a checkpoint             state_dict, load_state_dict

A technique overrides what it needs and nothing else. `build.py` lists them all (`PARTS`); neither
the loop nor the checkpoint nor the check knows one by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import PreTrainedModel

from ridgeline.records.recipe import Recipe
from ridgeline.train.loss import Objective
from ridgeline.train.optimizers.shards import ShardedOptimizer
from ridgeline.train.ranks import Ranks
from ridgeline.train.watch.phases import Phases


@dataclass(slots=True, kw_only=True)
class PartState:
    """What a checkpoint keeps of one part."""

    placed: dict[str, Tensor] = field(default_factory=dict)
    """Tensors placed as the weights are: cut anew for another layout, and loaded in place."""
    private: dict[str, Tensor] = field(default_factory=dict)
    """This rank's own tensors, whole."""
    shared: dict[str, Any] = field(default_factory=dict)
    """Values that all ranks have alike."""
    own: dict[str, Any] = field(default_factory=dict)
    """This rank's own values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledModel:
    """The filled model on this rank, from which parts are made."""

    recipe: Recipe
    ranks: Ranks
    phases: Phases
    modules: Sequence[nn.Module]
    """What this rank holds of the model: all of it, or its pipeline stages."""
    replica: nn.Module | None
    """The model as passes call it, in DDP where that sums gradients; None with a pipeline."""
    optimizer: ShardedOptimizer
    parts: Sequence[Part]
    """The parts that were made before this one."""


class Part:
    """One technique; each method does nothing until a technique overrides it."""

    name: ClassVar[str] = ""
    """What its state is called in checkpoints."""
    ranks_alone: ClassVar[bool] = False
    """Whether ranks hold different weights between steps, and sum no gradients."""
    remembers_buckets: ClassVar[bool] = False
    """Whether its state goes with DDP's buckets, which are settled in a first pass."""

    @staticmethod
    def shape(model: PreTrainedModel, recipe: Recipe) -> PreTrainedModel:
        """Change the whole model, which is still empty (on the meta device)."""
        del recipe
        return model

    @staticmethod
    def prepare(module: nn.Module, recipe: Recipe) -> nn.Module:
        """Change one module of this rank, after tensor parallelism and before sharding."""
        del recipe
        return module

    @classmethod
    def make(cls, filled: FilledModel) -> Part | None:
        """Make the part of a run; None where the recipe does not ask for it in steps."""
        del filled
        return None

    def objective(self, given: Objective) -> Objective:
        """The loss that the passes take, from the one that they would take."""
        return given

    def schedule_step(self, step: int) -> int:
        """The place of a step in the course that the learning rate follows."""
        return step

    def before_step(self, step: int) -> str:
        """Act before the passes of a step; returns what the log is to say of it."""
        del step
        return ""

    def around_forward(self) -> AbstractContextManager[object]:
        """Enter this around each forward pass."""
        return nullcontext()

    def before_update(self, step: int) -> None:
        """Act on the gradients, before they are clipped."""

    def after_update(self, step: int, *, moved: bool) -> None:
        """Act on the new weights, while the gradients are still there.

        Args:
            step: Optimizer steps done before this one.
            moved: Whether the optimizer stepped; loss scaling leaves some steps out.
        """

    def finish(self) -> None:
        """Act after the last step of the run."""

    def around_evaluation(self) -> AbstractContextManager[object]:
        """Enter this around an evaluation on held-out text."""
        return nullcontext()

    def wants_evaluation(self, done: int) -> bool:
        """Whether held-out text is to be evaluated after so many steps."""
        del done
        return False

    def figures(self, steps: int, phases_by_rank: Sequence[Mapping[str, float]]) -> dict[str, Any]:
        """Fields of the log's next line. Every rank calls it.

        Args:
            steps: Steps since the last line.
            phases_by_rank: For each rank, the seconds of each phase in these steps.
        """
        del steps, phases_by_rank
        return {}

    def shadows(self) -> Mapping[str, Tensor]:
        """Copies that follow the weights, by parameter; who sets weights by hand sets these too."""
        return {}

    def state_dict(self) -> PartState:
        """What an exact resume needs."""
        return PartState()

    def load_state_dict(self, state: PartState, *, same_ranks: bool = True) -> None:
        """Go on from a saved state; its `placed` tensors were loaded in place already.

        Args:
            state: As this part gave it, `placed` left out.
            same_ranks: Whether as many ranks wrote it as read it now.
        """
