"""The output head, compressed as a block is, with the activations that compressed blocks give.

A head that is the embedding's table under another name is left alone: its rows are looked up too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.checkpoints.layers import matrices_under, stored_dtypes
from ridgeline.checkpoints.skeleton import ModelSkeleton, set_tensor
from ridgeline.compress.blocks import LoadedBlock, compress_block
from ridgeline.compress.finished import Finished
from ridgeline.compress.flow import Flow, given, tables_of
from ridgeline.compress.watching.halfway import ForwardPass
from ridgeline.records.scheme import Scheme

SchemesOf = Callable[[str], tuple[Scheme, ...]]


def is_head_wanted(skeleton: ModelSkeleton, schemes_of: SchemesOf) -> bool:
    """Whether there is a head of its own that a scheme is for."""
    name = _head_name(skeleton)
    return name is not None and bool(schemes_of(name))


def compressed_head(skeleton: ModelSkeleton, flow: Flow | None, schemes_of: SchemesOf) -> Finished:
    """The head, with the activations that the compressed blocks give."""
    name = _head_name(skeleton)
    assert name is not None
    tables = tables_of(skeleton)
    outside = [
        target for target in skeleton.pieces if skeleton.is_outside(target) and target not in tables
    ]
    skeleton.load(outside)
    model: Any = skeleton.model
    module = model.get_output_embeddings()
    matrices = matrices_under(skeleton, module, f"{name}.")
    with _blocks_hand_on(skeleton, flow) as handed, _tables_of_one_row(skeleton, tables):
        runs: tuple[ForwardPass, ...] = ()
        if flow is not None:
            runs = flow.passes_of(lambda chunk: partial(_run_head, skeleton, handed, chunk))
        result = compress_block(
            LoadedBlock(
                module=module,
                matrices=matrices,
                dtypes=stored_dtypes(skeleton, matrices),
                schemes={matrix.name: schemes_of(matrix.name) for matrix in matrices},
                runs=runs,
            )
        )
    skeleton.unload(outside)
    return result


@contextmanager
def _blocks_hand_on(skeleton: ModelSkeleton, flow: Flow | None) -> Iterator[threading.local]:
    """Within, every block gives the `chunk` of its thread, so that only what follows computes."""
    handed = threading.local()
    blocks: list[Any] = list(skeleton.blocks)
    length = None if flow is None else flow.length
    for block in blocks:
        block.forward = lambda *_args, **_kwargs: given(handed.chunk, length)
    try:
        yield handed
    finally:
        for block in blocks:
            del block.forward


@contextmanager
def _tables_of_one_row(skeleton: ModelSkeleton, tables: dict[str, nn.Module]) -> Iterator[None]:
    """Within, all rows of what is looked up are the first one: what comes of them is not used."""
    empty = {target: skeleton.value(target) for target in tables}
    for target, module in tables.items():
        first = skeleton.checkpoint.rows(skeleton.pieces[target][0].source, torch.tensor([0]))
        set_tensor(module, "weight", first.float().expand(empty[target].shape))
    try:
        yield
    finally:
        for target, module in tables.items():
            module._parameters["weight"] = empty[target]  # type: ignore[assignment]


def _run_head(skeleton: ModelSkeleton, handed: threading.local, chunk: Tensor) -> Tensor:
    handed.chunk = chunk
    model: Any = skeleton.model
    with torch.no_grad():
        anything = torch.zeros(chunk.shape[:2], dtype=torch.int64)
        result: Tensor = model(anything, use_cache=False).logits
        return result


def _head_name(skeleton: ModelSkeleton) -> str | None:
    module: nn.Module | None = skeleton.model.get_output_embeddings()
    if not isinstance(module, nn.Linear):
        return None
    name = next(name for name, found in skeleton.model.named_modules() if found is module)
    return name if f"{name}.weight" in skeleton.pieces else None
