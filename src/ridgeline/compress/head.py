"""The output head, where it is to be compressed too: it lies behind the last block.

A head that is the embedding's table under another name is left alone: its rows are looked up too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.checkpoints.layers import matrices_under
from ridgeline.checkpoints.skeleton import ModelSkeleton
from ridgeline.compress.blocks import compress_block
from ridgeline.compress.streaming.finished import Finished
from ridgeline.compress.streaming.flow import Flow
from ridgeline.compress.streaming.loaded_block import LoadedBlock
from ridgeline.records.scheme import Scheme

SchemesOf = Callable[[str], tuple[Scheme, ...]]


def is_wanted(skeleton: ModelSkeleton, schemes_of: SchemesOf) -> bool:
    """Whether there is a head of its own that a scheme is for."""
    name = _name(skeleton)
    return name is not None and bool(schemes_of(name))


def compressed(skeleton: ModelSkeleton, flow: Flow | None, schemes_of: SchemesOf) -> Finished:
    """The head, with the activations that the compressed blocks give."""
    name = _name(skeleton)
    assert name is not None
    table = _table(skeleton)
    outside = [
        target for target in skeleton.pieces if skeleton.is_outside(target) and target != table
    ]
    skeleton.load(outside)
    model: Any = skeleton.model
    module = model.get_output_embeddings()
    matrices = matrices_under(skeleton, module, f"{name}.")
    runs: tuple[Callable[[], Tensor], ...] = ()
    if flow is not None:
        runs = tuple(_run(skeleton, chunk) for chunk in flow.chunks())
    result = compress_block(
        LoadedBlock(
            module=module,
            matrices=matrices,
            dtypes={
                matrix.name: skeleton.checkpoint.dtype(matrix.piece.source) for matrix in matrices
            },
            schemes={matrix.name: schemes_of(matrix.name) for matrix in matrices},
            runs=runs,
        )
    )
    skeleton.unload(outside)
    return result


def _run(skeleton: ModelSkeleton, chunk: Tensor) -> Callable[[], Tensor]:
    """Blocks hand the chunk on as it is, so that only what is behind them computes."""

    def forward() -> Tensor:
        blocks: list[Any] = list(skeleton.blocks)
        for block in blocks:
            block.forward = lambda *_args, **_kwargs: chunk
        try:
            with torch.no_grad():
                result: Tensor = skeleton.model(inputs_embeds=chunk, use_cache=False).logits
                return result
        finally:
            for block in blocks:
                del block.forward

    return forward


def _name(skeleton: ModelSkeleton) -> str | None:
    module: nn.Module | None = skeleton.model.get_output_embeddings()
    if not isinstance(module, nn.Linear):
        return None
    name = next(name for name, found in skeleton.model.named_modules() if found is module)
    return name if f"{name}.weight" in skeleton.pieces else None


def _table(skeleton: ModelSkeleton) -> str:
    weight = skeleton.model.get_input_embeddings().weight
    return next(name for name, found in skeleton.model.named_parameters() if found is weight)
