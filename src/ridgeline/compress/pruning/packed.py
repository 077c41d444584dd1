"""2:4 matrices as sparse tensor cores read them: half of the values, and where they stood.

Of every four weights along the depth two are kept, with a code of 4 bits: the place of the first in
the low two, of the second in the high two. Codes fill words of 16 bits (32 for int8), and the words
are ordered as CUTLASS hands them to threads (NVIDIA, "Accelerating sparse deep neural networks",
arXiv 2104.08378, section 3; PyTorch's `torch.sparse.SparseSemiStructuredTensorCUTLASS` has the
same layout, which tests compare bit by bit). bf16 takes 9/16 of the dense bytes, int8 5/8.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.errors import InputError
from ridgeline.kernels.masks import keep_n_of_m

_WORDS = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.int8: torch.int32}
_FILL = (0, 1, 3, 2)
"""Where fewer than two stay, which zeros are stored with them: place 2 first, as PyTorch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A matrix [out, in] of which at most two of four stay."""

    values: Tensor
    """[out, in/2] in the weight's dtype."""
    metadata: Tensor
    """[out, in/16] int16, of int8 [out, in/32] int32, in the order of the hardware."""

    @property
    def num_bytes(self) -> int:
        """Of both."""
        return self.values.nbytes + self.metadata.nbytes


def pack(weight: Tensor) -> Packed:
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
    return Packed(
        values=fours.gather(-1, places).flatten(1),
        metadata=_ordered(_signed(words, word)),
    )


def is_in_tiles(weight: Tensor) -> bool:
    """Whether a matrix is a whole number of the tiles of its dtype; false where it has none."""
    word = _WORDS.get(weight.dtype)
    if word is None:
        return False
    return weight.shape[0] % _tile(word) == 0 and weight.shape[1] % _columns(word) == 0


def unpack(packed: Packed) -> Tensor:
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
