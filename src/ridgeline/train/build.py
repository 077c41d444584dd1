"""From a recipe to everything that one rank steps: the order in which the pieces are put together.

    skeleton (meta) → student, adapter → pipeline cut → experts → tensor parallel
    → ring attention → recompute → fp8 or rounding → compile → sharding → fill → DDP → compression
    → optimizer → masks

Each piece works on the module that the one before left, all of it on the meta device until `fill`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ridgeline.records.recipe import Recipe
from ridgeline.train import activations
from ridgeline.train.adapters import RankAllocation, adapt
from ridgeline.train.averaging import WeightAverage
from ridgeline.train.blocks import blocks_of
from ridgeline.train.compression import Wire, attach, check_without_hook
from ridgeline.train.distillation import Distillation, prepare_student
from ridgeline.train.local_sgd import LocalSgd
from ridgeline.train.loss import Objective, next_token, token_loss
from ridgeline.train.lottery import Lottery
from ridgeline.train.model import fill, skeleton
from ridgeline.train.optimizers.build import build_optimizer
from ridgeline.train.optimizers.shards import ShardedOptimizer
from ridgeline.train.parallel.context import use_ring_attention
from ridgeline.train.parallel.experts import spread_experts
from ridgeline.train.parallel.pipeline import PipelinePasses, cut
from ridgeline.train.parallel.plain import PlainPasses
from ridgeline.train.parallel.sharding import shard, share_gradients, uses_fsdp
from ridgeline.train.parallel.tensor import split_matrices
from ridgeline.train.passes import Passes
from ridgeline.train.precision import Precision
from ridgeline.train.pruning import GradualPruning, Masks
from ridgeline.train.ranks import Ranks
from ridgeline.train.rounding import round_linears
from ridgeline.train.watch.phases import Phases


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a step needs, and what a checkpoint has to hold."""

    passes: Passes
    optimizer: ShardedOptimizer
    precision: Precision
    average: WeightAverage | None
    wire: Wire | None
    """What gradients travel over, where that is counted."""
    local: LocalSgd | None
    allocation: RankAllocation | None
    distillation: Distillation | None
    pruning: GradualPruning | None
    lottery: Lottery | None
    parameters: int
    """Of the whole model, on all ranks together."""
    trainable_parameters: int

    @property
    def sparse(self) -> GradualPruning | Lottery | None:
        """What sets weights to zero."""
        return self.pruning or self.lottery

    @property
    def masks(self) -> Masks | None:
        """Which weights stay, where some go."""
        return None if self.sparse is None else self.sparse.masks


def build(recipe: Recipe, ranks: Ranks, phases: Phases) -> Built:
    """Put together what this rank holds.

    Raises:
        InputError: The model cannot be laid out as the recipe says.
    """
    model = adapt(prepare_student(skeleton(recipe), recipe), recipe)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    precision = Precision(recipe, ranks)
    parts = cut(model, recipe, ranks) if ranks.size("pp") > 1 else [model]
    parts = [_laid_out(part, recipe, ranks, precision) for part in parts]
    fill(parts, recipe, ranks)
    distillation = Distillation(recipe, ranks) if recipe.distillation else None
    objective: Objective = distillation or next_token(recipe.optimizer.z_loss)
    passes, wire = _passes(parts, recipe, ranks, precision, phases, objective)
    optimizer = build_optimizer(parts, recipe, ranks)
    average = WeightAverage(parts, recipe.optimizer.ema) if recipe.optimizer.ema else None
    return Built(
        passes=passes,
        optimizer=optimizer,
        precision=precision,
        average=average,
        wire=wire,
        local=LocalSgd(parts, recipe, ranks) if recipe.communication.sync_every > 1 else None,
        allocation=RankAllocation.of(parts),
        distillation=distillation,
        pruning=GradualPruning(parts, recipe) if recipe.pruning else None,
        lottery=Lottery(parts, recipe, optimizer, average) if recipe.lottery else None,
        parameters=parameters,
        trainable_parameters=trainable,
    )


def _laid_out(part: nn.Module, recipe: Recipe, ranks: Ranks, precision: Precision) -> nn.Module:
    if recipe.layout.ep > 1:
        spread_experts(part, ranks)
    split_matrices(part, ranks)
    if ranks.size("cp") > 1:
        use_ring_attention(part, ranks)
    activations.recompute([part], recipe)
    part = precision.prepare(part)
    round_linears(part, recipe)
    if recipe.layout.compiled:
        # Each block for itself: they are alike, so one compilation serves them all.
        for block in blocks_of(part):
            block.compile()
    return shard(part, recipe, ranks)


def _passes(
    parts: Sequence[nn.Module],
    recipe: Recipe,
    ranks: Ranks,
    precision: Precision,
    phases: Phases,
    objective: Objective,
) -> tuple[Passes, Wire | None]:
    @contextmanager
    def forward() -> Iterator[None]:
        with (
            phases.phase("forward"),
            activations.offload(recipe, ranks.device),
            nullcontext() if uses_fsdp(recipe.layout) else precision.autocast(),
        ):
            yield

    if ranks.size("pp") > 1:
        check_without_hook(recipe)
        loss = partial(token_loss, z_loss=recipe.optimizer.z_loss)
        pipeline = PipelinePasses(
            parts, recipe, ranks, loss, autocast=forward, scale=precision.scale
        )
        return pipeline, None
    (part,) = parts
    shared = share_gradients(part, recipe, ranks)
    wire = None
    if isinstance(shared, DistributedDataParallel):
        wire = attach(shared, recipe, ranks)
    else:
        check_without_hook(recipe)
    plain = PlainPasses(
        shared,
        ranks,
        objective,
        autocast=forward,
        scale=lambda loss: phases.watched(precision.scale(loss)),
    )
    return plain, wire
