"""What each rank of the layout tests runs: a minimal training loop on seeded tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ridgeline.checkpoints.names import original_name
from ridgeline.records.layout import Layout
from ridgeline.records.recipe import Recipe, RecipeData, RecipeModel, RecipeOptimizer
from ridgeline.train.batch import IGNORED, Batch
from ridgeline.train.build import Passes, build
from ridgeline.train.loop import clip_gradients
from ridgeline.train.parallel.context import cut_sequences
from ridgeline.train.ranks import Ranks, join, leave
from ridgeline.train.watch.phases import Phases

SEQ = 16
Z_LOSS = 1e-3


@dataclass(frozen=True, kw_only=True)
class Course:
    """What a layout is judged by."""

    losses: list[float]
    norms: list[float]
    validation: float
    kept_elements: int
    """Parameters that this rank keeps after validation."""
    first_weights: dict[str, Tensor]
    """Whole, by original name; on ranks that have them."""
    first_gradients: dict[str, Tensor]


def recipe_of(config: str, layout: Layout) -> Recipe:
    """A recipe in fp32 arithmetic."""
    return Recipe(
        model=RecipeModel(config=config),
        data=RecipeData(path="none", seq=SEQ),
        layout=layout,
        optimizer=RecipeOptimizer(
            learning_rate=1e-3, final_learning_rate=1e-4, clip_norm=0.5, z_loss=Z_LOSS
        ),
    )


def run_cases(argument: dict[str, Any]) -> list[Course]:
    """Train one case after another: keys `cases` (config and layout), `steps`."""
    torch.set_num_threads(1)
    courses = []
    for config, layout in argument["cases"]:
        recipe = recipe_of(config, layout)
        courses.append(train(recipe, join(layout, timeout_seconds=60), argument["steps"]))
    leave()
    return courses


def train(recipe: Recipe, ranks: Ranks, steps: int) -> Course:
    """Steps of AdamW with clipping, on seeded tokens."""
    built = build(recipe, ranks, Phases(ranks.device))
    passes = built.passes
    parameters = [one for part in passes.modules for one in part.parameters()]
    first_weights = _whole(passes, gradients=False)
    first_gradients: dict[str, Tensor] = {}
    losses, norms = [], []
    for step in range(steps):
        batches, num_targets = step_batches(step, ranks)
        loss = passes.run(batches, num_targets)
        dist.all_reduce(loss, group=ranks.group("data"))
        losses.append(float(loss) / num_targets)
        if step == 0:
            first_gradients = _whole(passes, gradients=True)
        norms.append(clip_gradients(parameters, recipe.optimizer.clip_norm, ranks))
        built.optimizer.step()
        built.optimizer.zero_grad(set_to_none=True)
    batches, num_targets = step_batches(6, ranks)
    validation = torch.stack([passes.evaluate(batch) for batch in batches]).sum()
    dist.all_reduce(validation, group=ranks.group("data"))
    return Course(
        losses=losses,
        norms=norms,
        validation=float(validation) / num_targets,
        kept_elements=_kept(passes),
        first_weights=first_weights,
        first_gradients=first_gradients,
    )


def step_batches(step: int, ranks: Ranks) -> tuple[list[Batch], int]:
    """This rank's micro-batches of a step, and all ranks' targets."""
    layout = ranks.layout
    whole = _global_batch(step % 7, layout.global_batch)
    rows = layout.global_batch // layout.dp
    mine = slice(ranks.index("data") * rows, (ranks.index("data") + 1) * rows)
    parts = [
        Batch(
            input_ids=whole.input_ids[mine][start : start + layout.micro_batch],
            labels=whole.labels[mine][start : start + layout.micro_batch],
            position_ids=whole.position_ids[mine][start : start + layout.micro_batch],
        )
        for start in range(0, rows, layout.micro_batch)
    ]
    return [cut_sequences(part, ranks) for part in parts], whole.num_targets()


def _global_batch(seed: int, sequences: int) -> Batch:
    """Tokens that follow a rule half of the time; some have no target, unequally over ranks."""
    from tests.train.tiny_models import VOCAB

    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCAB, (sequences, SEQ + 1), generator=generator)
    for place in range(1, SEQ + 1):
        ruled = torch.rand(sequences, generator=generator) < 0.5
        tokens[:, place] = torch.where(
            ruled, (tokens[:, place - 1] * 3 + 1) % VOCAB, tokens[:, place]
        )
    labels = tokens[:, 1:].clone()
    for row in range(sequences):
        labels[row, : row % 5] = IGNORED
    return Batch(
        input_ids=tokens[:, :-1].contiguous(),
        labels=labels,
        position_ids=torch.arange(SEQ).repeat(sequences, 1),
    )


def _whole(passes: Passes, *, gradients: bool) -> dict[str, Tensor]:
    found = {}
    for name, parameter in _named(passes):
        tensor = parameter.grad if gradients else parameter.detach()
        if tensor is not None:
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            found[original_name(name)] = whole.detach().clone()
    return found


def _named(passes: Passes) -> Iterator[tuple[str, nn.Parameter]]:
    for part in passes.modules:
        yield from part.named_parameters()


def _kept(passes: Passes) -> int:
    return sum(
        (one.to_local() if isinstance(one, DTensor) else one).numel() for _, one in _named(passes)
    )
