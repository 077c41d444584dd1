"""Which elements of a matrix stay: an exact number of them, everywhere the same.

`compress/` prunes with it after training and `train/` during it. Scores are ranked within the last
dimension; of equal ones the first go, so that the number removed is exact for bf16 weights too,
which have many equals, and the mask the same on every machine.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.errors import InputError


def keep_largest(scores: Tensor, removed: int) -> Tensor:
    """True where an element stays: all but the `removed` lowest of each row.

    Args:
        scores: [..., k], no NaN.
        removed: 0 … k.

    >>> keep_largest(torch.tensor([[3.0, 1.0, 1.0, 2.0]]), 1)
    tensor([[ True, False,  True,  True]])
    """
    if removed <= 0:
        return torch.ones_like(scores, dtype=torch.bool)
    threshold = scores.kthvalue(removed, dim=-1, keepdim=True).values
    below, equal = scores < threshold, scores == threshold
    room = removed - below.sum(dim=-1, keepdim=True)
    return ~(below | (equal & (equal.cumsum(dim=-1, dtype=torch.int32) <= room)))


def keep_share(scores: Tensor, removed_share: float) -> Tensor:
    """True where an element stays: round(share · elements) go, the lowest of all together."""
    flat = scores.reshape(-1)
    return keep_largest(flat, round(removed_share * flat.numel())).view_as(scores)


def keep_blocks(scores: Tensor, removed_share: float, rows: int, columns: int) -> Tensor:
    """True where an element stays: whole blocks go, round(share · blocks) of the lowest mean score.

    Blocks at the right and lower edge may be cut short, and count by the mean of what they hold.

    >>> keep_blocks(torch.tensor([[4.0, 4.0, 1.0], [4.0, 0.0, 1.0]]), 0.5, 2, 2)
    tensor([[ True,  True, False],
            [ True,  True, False]])
    """
    height, width = scores.shape
    padding = (0, -width % columns, 0, -height % rows)
    tiles = (-(-height // rows), rows, -(-width // columns), columns)
    padded = torch.nn.functional.pad(scores.float(), padding).view(tiles)
    held = torch.nn.functional.pad(torch.ones_like(scores, dtype=torch.float32), padding)
    means = padded.sum(dim=(1, 3)) / held.view(tiles).sum(dim=(1, 3))
    kept = keep_share(means, removed_share)
    whole = kept.repeat_interleave(rows, dim=0).repeat_interleave(columns, dim=1)
    return whole[:height, :width]


def keep_n_of_m(scores: Tensor, n: int, m: int) -> Tensor:
    """Exactly n of every m neighbours along the last dimension stay.

    Raises:
        InputError: m does not divide the dimension.

    >>> keep_n_of_m(torch.tensor([[3.0, 1.0, 0.0, 2.0]]), 2, 4)
    tensor([[ True, False, False,  True]])
    """
    if not 0 < n < m:
        raise InputError(f"{n}:{m} is no pattern; it says how many stay of how many, such as 2:4")
    if scores.shape[-1] % m:
        raise InputError(
            f"{n}:{m}: rows of {scores.shape[-1]} weights do not divide into groups of {m}; leave"
            " this layer out, or prune without a pattern"
        )
    return keep_largest(scores.unflatten(-1, (-1, m)), m - n).flatten(-2)
