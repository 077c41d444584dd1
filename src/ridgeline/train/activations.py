"""What is recomputed in backward rather than kept, and what is kept in host memory instead.

Full recomputation keeps only each block's input (Chen et al., "Training deep nets with sublinear
memory cost", arXiv 1604.06174). Selective recomputation keeps what is dear to compute, by operator:
attention and every second matmul stay, the rest is done again (torchtitan's selective activation
checkpointing; the idea is that of Korthikanti et al., arXiv 2205.05198, section 5, for fused
attention, which keeps no scores). A
budget recomputes as few blocks as fit: each block's kept bytes are measured in one forward pass.
Between all and none stand each k-th block, and runs of blocks that recompute together.

Of such a run only the input is kept. L blocks in √L runs of √L keep √L inputs, and √L blocks'
activations while one run is being differentiated: memory grows with √L for one more forward pass
(Chen et al., arXiv 1604.06174, section 4.1). `torch.utils.checkpoint.checkpoint_sequential` does
this for an `nn.Sequential`; here the model calls its blocks itself, each with arguments of its own.
So every block of a run but the last hands its input on and notes its arguments, and the last runs
them all under one checkpoint. Modules, names of parameters and hooks stay as they are.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from ridgeline.errors import InputError
from ridgeline.records.recipe import Recipe
from ridgeline.train.blocks import blocks_of, require_blocks
from ridgeline.train.part import FilledModel, Part

_aten = torch.ops.aten
MATMULS = frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten._grouped_mm.default,
    }
)
"""Operators of which selective recomputation keeps every second, beginning with a block's first."""
KEPT_OPERATORS = frozenset(
    {
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_cudnn_attention.default,
    }
)
"""What selective recomputation keeps always."""


class Activations(Part):
    """What a recipe gives up for memory: `layout.recompute` and `[memory]`."""

    name = "activations"

    def __init__(self, filled: FilledModel) -> None:
        self._filled = filled
        self._fitting: contextlib.ExitStack | None = None
        self._fitted = False

    @staticmethod
    def prepare(module: nn.Module, recipe: Recipe) -> nn.Module:
        """Recompute as the layout says."""
        recompute(module, recipe)
        return module

    @classmethod
    def make(cls, filled: FilledModel) -> Activations | None:
        """`[memory]` of the recipe."""
        memory = filled.recipe.memory
        return cls(filled) if memory.activation_budget_bytes or memory.offload_activations else None

    def around_forward(self) -> AbstractContextManager[object]:
        """Keep activations in host memory, where the recipe asks."""
        return offload(self._filled.recipe, self._filled.ranks.device)

    def before_step(self, step: int) -> str:
        """Measure the first step of a start, to recompute no more than the budget asks."""
        del step
        if not self._fitted:
            self._fitting = contextlib.ExitStack()
            self._fitting.enter_context(fitted_to_budget(self._filled.modules, self._filled.recipe))
        return ""

    def after_update(self, step: int, *, moved: bool) -> None:
        """Let blocks keep what the budget allows, once the first step has measured them."""
        del step, moved
        if self._fitting is not None:
            self._fitting.close()
            self._fitting, self._fitted = None, True


def recompute(module: nn.Module, recipe: Recipe) -> None:
    """Make the blocks recompute as the layout says. Names of parameters stay as they are.

    With a budget every block recomputes until `fit_budget` has measured one.

    Raises:
        InputError: The model has no blocks that transformers can recompute.
    """
    wanted = "full" if recipe.memory.activation_budget_bytes else recipe.layout.recompute
    if wanted == "none":
        return
    blocks = require_blocks(module, "recomputation")
    if recipe.memory.recompute_runs == "sqrt":
        in_segments(blocks)
        return
    for block in blocks[:: recipe.memory.recompute_every]:
        _set(block, wanted)


def fit_budget(
    blocks: Sequence[nn.Module], kept_bytes: float, in_flight: int, budget: float
) -> int:
    """Let as many blocks keep their activations as the budget allows; returns how many recompute.

    Args:
        blocks: This rank's blocks, all recomputing.
        kept_bytes: What one block keeps when it does not recompute (`kept_by`).
        in_flight: Micro-batches whose activations are alive together (pipeline).
        budget: Bytes for all blocks' activations on this rank.
    """
    plain = min(len(blocks), int(budget // max(1.0, kept_bytes * in_flight)))
    # The last blocks are differentiated first: what they keep is given back soonest.
    for block in blocks[len(blocks) - plain :]:
        block.gradient_checkpointing = False
    return len(blocks) - plain


@contextlib.contextmanager
def fitted_to_budget(modules: Sequence[nn.Module], recipe: Recipe) -> Iterator[None]:
    """Around a rank's first step: measure one block of each part, then recompute what must be."""
    budget = recipe.memory.activation_budget_bytes
    if budget is None:
        yield
        return
    held = [blocks_of(module) for module in modules]
    with contextlib.ExitStack() as stack:
        counts = [stack.enter_context(kept_by(blocks[0])) for blocks in held if blocks]
        yield
    # Under 1F1B the first stage holds most: as many micro-batches as there are stages.
    in_flight = min(recipe.layout.pp, recipe.layout.num_microbatches)
    largest = max((max(count, default=0) for count in counts), default=0)
    fit_budget([block for blocks in held for block in blocks], largest, in_flight, budget)


@contextlib.contextmanager
def kept_by(block: nn.Module) -> Iterator[list[int]]:
    """Count the bytes that one block keeps for backward during a forward pass inside.

    The list has one entry per pass of the block: bytes of distinct storages that autograd saves,
    the parameters' own left out.
    """
    counts: list[int] = []
    own = {_storage(parameter) for parameter in block.parameters()}
    seen: dict[int, int] = {}
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: _note(tensor, own, seen), lambda tensor: tensor
    )

    def before(*_: Any) -> None:
        seen.clear()
        hooks.__enter__()

    def after(*_: Any) -> None:
        hooks.__exit__()
        counts.append(sum(seen.values()))

    was = block.gradient_checkpointing
    block.gradient_checkpointing = False
    handles = [
        block.register_forward_pre_hook(before),
        block.register_forward_hook(after, always_call=True),
    ]
    try:
        yield counts
    finally:
        block.gradient_checkpointing = was
        for handle in handles:
            handle.remove()


def offload(recipe: Recipe, device: torch.device) -> AbstractContextManager[Any]:
    """Around a forward pass: what backward needs goes to host memory, where the recipe asks.

    Raises:
        InputError: On the host there is nowhere else to put it.
    """
    if not recipe.memory.offload_activations:
        return nullcontext()
    if device.type == "cpu":
        raise InputError(
            "memory.offload_activations: on a CPU activations are in host memory already; leave"
            " it out"
        )
    return torch.autograd.graph.save_on_cpu(pin_memory=True)


def _set(block: nn.Module, wanted: str) -> None:
    settings: dict[str, Any] = {"use_reentrant": False}
    if wanted == "selective":
        settings["context_fn"] = _selective_contexts
    block.gradient_checkpointing = True
    block._gradient_checkpointing_func = partial(checkpoint, **settings)


def _selective_contexts() -> Any:
    """The two contexts of one pass through a block: forward, and the same again in backward."""
    matmuls = {False: 0, True: 0}

    def keep(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        kept = operator in KEPT_OPERATORS
        if operator in MATMULS:
            matmuls[context.is_recompute] += 1
            kept = matmuls[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(keep)


def _note(tensor: Tensor, own: set[int], seen: dict[int, int]) -> Tensor:
    place = _storage(tensor)
    if place not in own:
        seen[place] = tensor.untyped_storage().nbytes()
    return tensor


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def in_segments(blocks: Sequence[nn.Module]) -> list[int]:
    """Recompute blocks in √L runs of nearly equal length; returns the length of each run.

    The blocks do not recompute by themselves then.
    """
    count = max(round(math.sqrt(len(blocks))), 1)
    ends = [round(len(blocks) * part / count) for part in range(count + 1)]
    runs = [blocks[start:end] for start, end in itertools.pairwise(ends)]
    for run in runs:
        _Segment(run)
    return [len(run) for run in runs]


class _Segment:
    """The blocks of one run, and what each of them was called with."""

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        self._blocks = list(blocks)
        self._forwards: list[Callable[..., Any]] = [block.forward for block in blocks]
        self._called: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        for place, block in enumerate(blocks):
            block.gradient_checkpointing = False
            block.forward = self._stand_in(place)

    def _stand_in(self, place: int) -> Callable[..., Any]:
        """The forward that the model calls: only the last one computes."""

        def forward(hidden: Any, *args: Any, **kwargs: Any) -> Any:
            if place == 0:
                self._called = []
            self._called.append((args, kwargs))
            if place < len(self._blocks) - 1:
                return hidden
            called, self._called = self._called, []
            return checkpoint(self._run, hidden, called, use_reentrant=False)

        return forward

    def _run(self, hidden: Any, called: list[tuple[tuple[Any, ...], dict[str, Any]]]) -> Any:
        output = hidden
        for forward, (args, kwargs) in zip(self._forwards, called, strict=True):
            output = forward(hidden, *args, **kwargs)
            hidden = output[0] if isinstance(output, tuple) else output
        return output
