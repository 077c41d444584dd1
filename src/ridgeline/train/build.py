"""From a recipe to everything that one rank steps: the order in which the pieces are put together.

    skeleton (meta) → shape → pipeline cut → experts → tensor parallel → ring attention → prepare
    → compile → sharding → fill → fused kernels → DDP → optimizer → make → passes

`shape`, `prepare` and `make` are those of each part, in the order of `PARTS`. Each piece works on
the module that the one before left, all of it on the meta device until `fill`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from torch import Tensor, nn

from ridgeline.errors import InputError
from ridgeline.kernels.fused_modules import fuse_modules
from ridgeline.kernels.triton import takes
from ridgeline.records.recipe import Recipe
from ridgeline.train.activations import Activations
from ridgeline.train.adapters import RankAllocation
from ridgeline.train.averaging import WeightAverage
from ridgeline.train.blocks import blocks_of
from ridgeline.train.compression.wire import Wire
from ridgeline.train.distillation import Distillation
from ridgeline.train.images.distillation import ImageDistillation
from ridgeline.train.images.loss import HeldOutAccuracy, image_objective
from ridgeline.train.images.quantisation import RoundedImages
from ridgeline.train.images.statistics import RunningStatistics
from ridgeline.train.local_sgd import LocalSgd
from ridgeline.train.loss import next_token, token_loss
from ridgeline.train.lottery import Lottery
from ridgeline.train.model import fill, skeleton
from ridgeline.train.optimizer_on_disk import OptimizerOnDisk
from ridgeline.train.optimizers.build import build_optimizer
from ridgeline.train.optimizers.shards import ShardedOptimizer
from ridgeline.train.parallel.context import use_ring_attention
from ridgeline.train.parallel.experts import spread_experts
from ridgeline.train.parallel.pipeline import PipelinePasses, cut
from ridgeline.train.parallel.plain import PlainPasses
from ridgeline.train.parallel.sharding import shard, share_gradients
from ridgeline.train.parallel.tensor import split_matrices
from ridgeline.train.part import FilledModel, Part
from ridgeline.train.precision import Precision
from ridgeline.train.pruning import GradualPruning
from ridgeline.train.ranks import Ranks
from ridgeline.train.rounding import RoundedTraining
from ridgeline.train.schedule import LearningRate
from ridgeline.train.watch.drift import PhaseDrift
from ridgeline.train.watch.phases import Phases
from ridgeline.train.watch.stragglers import StragglerWatch

PARTS: tuple[type[Part], ...] = (
    Activations,
    Precision,
    RoundedTraining,
    RoundedImages,
    Distillation,  # its projection is added before an adapter freezes the rest
    ImageDistillation,
    HeldOutAccuracy,  # around whatever loss is trained
    RankAllocation,
    Wire,
    WeightAverage,
    RunningStatistics,  # agrees on those that go with the average
    GradualPruning,
    Lottery,
    LocalSgd,
    StragglerWatch,
    PhaseDrift,
    OptimizerOnDisk,
    LearningRate,  # asks the others where a course stands
)
"""Every technique of training, in the order in which each is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a step needs, and what a checkpoint has to hold."""

    passes: Passes
    optimizer: ShardedOptimizer
    precision: Precision
    parts: Sequence[Part]
    """The techniques of this run, `precision` among them."""
    parameters: int
    """Parameters of the whole model, on all ranks together."""
    trainable_parameters: int

    @property
    def ranks_alone(self) -> bool:
        """Whether ranks hold different weights between steps."""
        return any(part.ranks_alone for part in self.parts)


def build(recipe: Recipe, ranks: Ranks, phases: Phases) -> Built:
    """Put together what this rank holds.

    Raises:
        InputError: The model cannot be laid out as the recipe says.
    """
    precision = Precision(recipe, ranks)
    model = skeleton(recipe)
    for kind in PARTS:
        model = kind.shape(model, recipe)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    pipelined = ranks.size("pp") > 1
    modules = cut(model, recipe, ranks) if pipelined else [model]
    modules = [_lay_out(module, recipe, ranks) for module in modules]
    fill(modules, recipe, ranks)
    use_fused_kernels(modules, recipe)
    replica = None if pipelined else share_gradients(modules[0], recipe, ranks)
    optimizer = build_optimizer(modules, recipe, ranks)
    parts: list[Part] = [precision]
    filled = FilledModel(
        recipe=recipe,
        ranks=ranks,
        phases=phases,
        modules=modules,
        replica=replica,
        optimizer=optimizer,
        parts=parts,
    )
    for kind in PARTS:
        part = kind.make(filled)
        if part is not None:
            parts.append(part)
    return Built(
        passes=_passes(filled, precision),
        optimizer=optimizer,
        precision=precision,
        parts=tuple(parts),
        parameters=parameters,
        trainable_parameters=trainable,
    )


def _lay_out(module: nn.Module, recipe: Recipe, ranks: Ranks) -> nn.Module:
    if recipe.layout.ep > 1:
        spread_experts(module, ranks)
    split_matrices(module, ranks)
    if ranks.size("cp") > 1:
        use_ring_attention(module, ranks)
    for kind in PARTS:
        module = kind.prepare(module, recipe)
    if recipe.layout.compiled:
        # Each block for itself: they are alike, so one compilation serves them all.
        # Those of an image classifier are not: it is one graph.
        for block in [module] if recipe.images is not None else blocks_of(module):
            block.compile()
    return shard(module, recipe, ranks)


def _passes(filled: FilledModel, precision: Precision) -> Passes:
    recipe, ranks, phases = filled.recipe, filled.ranks, filled.phases
    forward = _around_forward(phases, filled.parts)
    z_loss = recipe.optimizer.z_loss
    if filled.replica is None:
        return PipelinePasses(
            filled.modules,
            recipe,
            ranks,
            partial(token_loss, z_loss=z_loss),
            autocast=forward,
            scale=precision.scale,
        )
    images = recipe.images
    objective = next_token(z_loss) if images is None else image_objective(images.label_smoothing)
    for part in filled.parts:
        objective = part.objective(objective)
    return PlainPasses(
        filled.replica,
        ranks,
        objective,
        autocast=forward,
        scale=lambda loss: phases.watched(precision.scale(loss)),
    )


def _around_forward(
    phases: Phases, parts: Sequence[Part]
) -> Callable[[], AbstractContextManager[None]]:
    @contextmanager
    def forward() -> Iterator[None]:
        with phases.phase("forward"), ExitStack() as stack:
            for part in parts:
                stack.enter_context(part.around_forward())
            yield

    return forward


def use_fused_kernels(modules: Sequence[nn.Module], recipe: Recipe) -> Counter[str]:
    """Put kernels in place of norms, gated MLPs and rotary embeddings (`run.kernels`); how many.

    It comes after the weights are there, since a module is taken where it and its kernel agree on
    numbers, and before gradients are shared. Sharded weights are not where kernels look for them.

    Raises:
        InputError: No GPU, or nothing of the model can be taken.
    """
    found: Counter[str] = Counter()
    if recipe.run.kernels != "fused":
        return found
    if not all(takes(parameter) for module in modules for parameter in module.parameters()):
        raise InputError(
            'recipe: run.kernels "fused" needs a GPU, and the model is on the CPU; leave it out'
        )
    for module in modules:
        found += fuse_modules(module, losses=False)[0]
    if not found:
        raise InputError(
            'recipe: run.kernels "fused" finds no norm, gated MLP or rotary embedding that it'
            " can take (sharded weights are none); leave it out"
        )
    return found


class Passes(Protocol):
    """The forward and backward passes of one optimizer step, on this rank's micro-batches.

    One loss convention for every layout: the loss of a step is the sum over all target tokens of
    all ranks and micro-batches, divided by their number (`num_targets`, already summed over the
    `data` axis). Each implementation scales what it does so that, after `run`, `.grad` of every
    local parameter holds exactly the gradient of that loss, whatever ranks it was averaged over.
    """

    @property
    def modules(self) -> Sequence[nn.Module]:
        """What this rank holds of the model: one module, or its pipeline stages."""

    def run(self, batches: Sequence[Any], num_targets: int) -> Tensor:
        """Forward and backward; gradients are then complete and agreed on.

        Args:
            batches: This rank's micro-batches, on the device, as the objective takes them.
            num_targets: Target tokens of the whole step, over all data-parallel ranks.

        Returns:
            The sum of token losses of this rank's data (over its sequences, whole), detached, on
            the device; the same on every rank that reads the same data (tp, cp, pp).
        """

    def evaluate(self, batch: Any) -> Tensor:
        """The sum of token losses of one micro-batch, without gradients."""
