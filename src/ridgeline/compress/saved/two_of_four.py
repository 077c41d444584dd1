"""A 2:4 model as sparse tensor cores read it: half of the values, and where they stood.

Of every four weights along the depth two are kept, with a code of 4 bits: the place of the first in
the low two, of the second in the high two. Codes fill words of 16 bits (32 for int8), and the words
are ordered as CUTLASS hands them to threads (NVIDIA, "Accelerating sparse deep neural networks",
arXiv 2104.08378, section 3; PyTorch's `torch.sparse.SparseSemiStructuredTensorCUTLASS` has the
same layout, which tests compare bit by bit). bf16 takes 9/16 of the dense bytes, int8 5/8.

A directory as the one it was made from, but that every weight of a linear layer that is 2:4, and of
whole tiles, lies under two names, `….values` and `….metadata`. transformers, vLLM and our own
engine have no matmuls for it: `config.json` names a type of model that they refuse, with the
model's own configuration in it, and `restore` gives the model back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.checkpoints.writing import Shards, copy_companions, write_config, written_aside
from ridgeline.compress.pruning.report import two_of_four
from ridgeline.errors import InputError, RidgelineError
from ridgeline.kernels.masks import keep_n_of_m
from ridgeline.kernels.number_formats import integer

_WORDS = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.int8: torch.int32}
_FILL = (0, 1, 3, 2)
"""Where fewer than two stay, which zeros are stored with them: place 2 first, as PyTorch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedMatrix:
    """A matrix [out, in] of which at most two of four stay."""

    values: Tensor
    """[out, in/2] in the weight's dtype."""
    metadata: Tensor
    """[out, in/16] int16, of int8 [out, in/32] int32, in the order of the hardware."""

    @property
    def num_bytes(self) -> int:
        """The bytes of both."""
        return self.values.nbytes + self.metadata.nbytes


def pack(weight: Tensor) -> PackedMatrix:
    """Leave the zeros out.

    Args:
        weight: [out, in], float16, bfloat16 or int8.

    Raises:
        InputError: More than two of some four are not zero, or the shape fits no tile.
    """
    word = _word(weight)
    fours = weight.unflatten(1, (-1, 4))
    nonzero = fours != 0
    if bool((nonzero.sum(dim=-1) > 2).any()):
        raise InputError("more than two of four weights are not zero; prune by 2:4 first")
    order = torch.tensor(_FILL, device=weight.device)
    stays = keep_n_of_m((nonzero * 4 + order).flatten(1), 2, 4).view_as(fours)
    # True twice in every four, in order: the places are the columns of what is found.
    places = stays.reshape(-1, 4).nonzero()[:, 1].view(*fours.shape[:2], 2)
    codes = places[..., 0] | (places[..., 1] << 2)
    per_word = word.itemsize * 2
    shifts = 4 * torch.arange(per_word, device=weight.device)
    words = (codes.unflatten(1, (-1, per_word)) << shifts).sum(dim=-1)
    return PackedMatrix(
        values=fours.gather(-1, places).flatten(1),
        metadata=_ordered(_signed(words, word)),
    )


def is_in_tiles(weight: Tensor) -> bool:
    """Whether a matrix is a whole number of the tiles of its dtype; false where it has none."""
    word = _WORDS.get(weight.dtype)
    if word is None:
        return False
    return weight.shape[0] % _tile(word) == 0 and weight.shape[1] % _columns(word) == 0


def unpack(packed: PackedMatrix) -> Tensor:
    """The matrix [out, in] with its zeros."""
    values = packed.values
    words = _unordered(packed.metadata)
    per_word = words.dtype.itemsize * 2
    shifts = 4 * torch.arange(per_word, device=words.device)
    codes = (words.to(torch.int64)[..., None] >> shifts).flatten(1) & 0b1111
    places = torch.stack([codes & 0b11, codes >> 2], dim=-1)
    fours = values.new_zeros(*codes.shape, 4)
    fours.scatter_(-1, places, values.unflatten(1, (-1, 2)))
    return fours.flatten(1)


def _word(weight: Tensor) -> torch.dtype:
    word = _WORDS.get(weight.dtype)
    if word is None:
        raise InputError(
            f"2:4 in {weight.dtype} has no packed format here; use float16, bfloat16 or int8"
        )
    if not is_in_tiles(weight):
        high, wide = _tile(word), _columns(word)
        raise InputError(
            f"2:4 packs tiles of {high} x {wide} weights, and {weight.shape[0]} x"
            f" {weight.shape[1]} are no whole number of them; leave this layer dense"
        )
    return word


def _columns(word: torch.dtype) -> int:
    """Weights of two words, for blocks of 2 x 2."""
    return word.itemsize * 16


def _tile(word: torch.dtype) -> int:
    """Rows whose words are ordered together."""
    return 32 if word == torch.int16 else 16


def _signed(words: Tensor, word: torch.dtype) -> Tensor:
    """Bit patterns of 16 or 32 bits as signed numbers."""
    bits = word.itemsize * 8
    return torch.where(words >= 1 << (bits - 1), words - (1 << bits), words).to(word)


def _ordered(words: Tensor) -> Tensor:
    return (
        words.new_empty(words.numel()).scatter_(0, _places(words), words.flatten()).view_as(words)
    )


def _unordered(words: Tensor) -> Tensor:
    return words.flatten().gather(0, _places(words)).view_as(words)


def _places(words: Tensor) -> Tensor:
    """Where the hardware wants each word of [rows, columns], row by row: int64 [rows · columns].

    Rows r, r + 8, r + 16 … of a tile come to stand next to each other; in every 2 x 2 block the
    upper right and the lower left word change places; columns go in pairs, each pair from top to
    bottom.
    """
    rows, columns = words.shape
    tile = _tile(words.dtype)
    row = torch.arange(rows, device=words.device)[:, None].expand(rows, columns)
    column = torch.arange(columns, device=words.device).expand(rows, columns)
    row = row // tile * tile + row % 8 * (tile // 8) + row % tile // 8
    crossed = row % 2 - column % 2  # 1: lower left, -1: upper right
    row, column = row - crossed, column + crossed
    return (column // 2 * (2 * rows) + row * 2 + column % 2).flatten()


MODEL_TYPE = "ridgeline-2of4"
_VALUES, _METADATA = ".values", ".metadata"
_LEVELS = ".weight_packed"
"""The last part of the name of levels in words of 32 bits, in compressed-tensors."""


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
            both = PackedMatrix(values=source.read(name), metadata=source.read(plain + _METADATA))
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
