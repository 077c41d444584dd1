"""A 2:4 model as sparse tensor cores read it (`pruning/packed.py`): half the values, and places.

A directory as the one it was made from, but that every weight of a linear layer that is 2:4, and of
whole tiles, lies under two names, `….values` and `….metadata`. transformers, vLLM and our own
engine have no products for it: `config.json` names a type of model that they refuse, with the
model's own configuration in it, and `restore` gives the model back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.checkpoints.writing import Shards, copy_companions, write_config, written_aside
from ridgeline.compress.pruning.packed import Packed, is_in_tiles, pack, unpack
from ridgeline.compress.pruning.report import two_of_four
from ridgeline.errors import InputError, RidgelineError
from ridgeline.kernels.number_formats import integer

MODEL_TYPE = "ridgeline-2of4"
_VALUES, _METADATA = ".values", ".metadata"
_LEVELS = ".weight_packed"
"""Of compressed-tensors: levels in words of 32 bits."""


def export(directory: Path, out: Path) -> None:
    """Write a directory with 2:4 matrices packed; each is unpacked again and compared.

    Args:
        directory: Dense in bfloat16 or float16, or with int8 weights.
        out: Must not exist.

    Raises:
        InputError: No matrix is 2:4 and of a dtype and shape that have a packed format.
        RidgelineError: What was packed unpacks to something else.
    """
    source = CheckpointFiles(directory)
    sparse = [name for name in source.names if _is_two_of_four(source, name)]
    if not sparse:
        raise InputError(
            f"{directory}: no matrix is 2:4 in 16 or 8 bits, and of whole tiles of 32 x 32 or 16 x"
            " 64; give --scheme 2:4-sparsegpt, then w8a16-channel where the model is float32"
        )
    config = {"model_type": MODEL_TYPE, "tensors": sparse, "of": source.config}
    _write(directory, out, _packed(source, frozenset(sparse)), config)


def restore(directory: Path, out: Path) -> None:
    """Write the model that `export` packed.

    Raises:
        InputError: `directory` is not what `export` writes.
    """
    source = CheckpointFiles(directory)
    if source.config.get("model_type") != MODEL_TYPE:
        raise InputError(f"{directory}: no packed 2:4 model")
    sparse = frozenset(source.config["tensors"])
    _write(directory, out, _unpacked(source, sparse), source.config["of"])


def _is_two_of_four(source: CheckpointFiles, name: str) -> bool:
    matrix = _matrix(source, name)
    return matrix is not None and is_in_tiles(matrix) and two_of_four(matrix)


def _packed(source: CheckpointFiles, sparse: frozenset[str]) -> Iterator[tuple[str, Tensor]]:
    for name in source.names:
        matrix = _matrix(source, name) if name in sparse else None
        if matrix is None:
            yield name, source.read(name)
            continue
        found = pack(matrix)
        if not torch.equal(unpack(found), matrix):
            raise RidgelineError(f"{name} unpacks to something else; nothing was written")
        yield name + _VALUES, found.values
        yield name + _METADATA, found.metadata


def _unpacked(source: CheckpointFiles, sparse: frozenset[str]) -> Iterator[tuple[str, Tensor]]:
    for name in source.names:
        plain = name.removesuffix(_VALUES)
        if plain != name and plain in sparse:
            both = Packed(values=source.read(name), metadata=source.read(plain + _METADATA))
            matrix = unpack(both)
            yield plain, integer.pack(matrix, 8) if plain.endswith(_LEVELS) else matrix
        elif name.removesuffix(_METADATA) not in sparse:
            yield name, source.read(name)


def _matrix(source: CheckpointFiles, name: str) -> Tensor | None:
    """[out, in] as it would be packed; None of what is not the weight of a linear layer."""
    if name.endswith(_LEVELS):
        depth = int(source.read(name.replace(_LEVELS, ".weight_shape"))[1])
        eight = 4 * source.shape(name)[1] == depth
        return integer.unpack(source.read(name), 8, depth) if eight else None
    linear = name.endswith(".weight") and len(source.shape(name)) == 2
    return source.read(name) if linear else None


def _write(
    source: Path, out: Path, tensors: Iterable[tuple[str, Tensor]], config: dict[str, Any]
) -> None:
    with written_aside(out) as aside:
        shards = Shards(aside)
        for name, tensor in tensors:
            shards.add(name, tensor)
        shards.close()
        write_config(aside, config)
        copy_companions(source, aside)
