"""Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) on sharded matrices.

    M ← μ M + (1-μ) G
    U = NewtonSchulz(G + μ (M - G))        orthogonal, by torch's own iteration
    W ← (1 - ηλ) W - η s U

`s` is √max(1, rows/columns) (Jordan), or 0.2 √max(rows, columns), which gives updates of AdamW's
size, so that one learning rate serves both kinds of parameter (Liu et al., arXiv 2502.16982,
eq. 4).
The iteration needs whole matrices. It works in bf16, and so do the
exchanges, which therefore lose nothing. All that is no matrix inside a block has AdamW. Stacks of
matrices (experts) are treated matrix by matrix.

Where matrices are cut over ranks, each matrix is sent to one rank, which computes on it alone and
sends the pieces of the result back: two all-to-alls for as many matrices as there are ranks, so
that no rank does another's work and none holds more than one whole matrix (Liu et al., "Muon is
scalable for LLM training", arXiv 2502.16982, section 2.3, gathers in the same way, but on every
rank).

A piece is rows and columns of the matrix: DTensor's placements are applied one after the other,
each cutting a dimension as `torch.chunk` does. FSDP over tensor parallelism cuts what the inner
axis has cut already (`_StridedShard`), so such axes come last; a `_StridedShard` alone cuts each of
its groups (fused gate and up).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard
from torch.optim._muon import (
    DEFAULT_A,
    DEFAULT_B,
    DEFAULT_C,
    DEFAULT_NS_STEPS,
    EPS,
    _zeropower_via_newtonschulz,
)

from ridgeline.train.optimizers.adamw import adamw_update
from ridgeline.train.optimizers.shards import Group, Rounding, ShardedOptimizer, local, zeros_for

_ADAMW_SIZE = 0.2


class Muon(ShardedOptimizer):
    """Muon for groups with `orthogonal`, AdamW for the others.

    Args:
        groups: With `lr`, `orthogonal`, and `weight_decay` where it differs.
        momentum: Of the orthogonal groups.
        betas: Of the others.
        epsilon: Of the others.
        weight_decay: Default of the groups.
        match_adamw: Scale updates to AdamW's size.
        rounding: How updates of bf16 matrices are rounded; None: to nearest.
    """

    def __init__(
        self,
        groups: Iterable[Group],
        *,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        match_adamw: bool = False,
        rounding: Rounding | None = None,
    ) -> None:
        settings = {
            "momentum": momentum,
            "betas": betas,
            "eps": epsilon,
            "weight_decay": weight_decay,
        }
        self._matrices = WholeMatrices()
        self._match_adamw = match_adamw
        super().__init__(groups, settings, rounding)

    def tensors_kept(self, group: Group) -> int:
        """One moment of what is made orthogonal, AdamW's two of the rest."""
        return 1 if group["orthogonal"] else 2

    def update(self, group: Group, parameters: list[nn.Parameter], gradients: list[Tensor]) -> None:
        """One step of a group."""
        if not group["orthogonal"]:
            adamw_update(self, group, parameters, gradients)
            return
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = zeros_for(parameter)
        momentum = group["momentum"]
        buffers = [local(self.state[p]["momentum_buffer"]) for p in parameters]
        torch._foreach_lerp_(buffers, gradients, 1.0 - momentum)
        directions = torch._foreach_lerp(gradients, buffers, momentum)
        updates = self._matrices.apply(
            parameters, [direction.bfloat16() for direction in directions], orthogonalised
        )
        for parameter, update in zip(parameters, updates, strict=True):
            with self.wide(group, parameter) as weight:
                weight.mul_(1.0 - group["lr"] * group["weight_decay"])
                weight.add_(update, alpha=-group["lr"] * self._scale(parameter.shape))

    def _scale(self, shape: torch.Size) -> float:
        rows, columns = shape[-2:]
        if self._match_adamw:
            return _ADAMW_SIZE * math.sqrt(max(rows, columns))
        return math.sqrt(max(1.0, rows / columns))


def orthogonalised(matrices: Tensor) -> Tensor:
    """Nearly U Vᵀ of a matrix U S Vᵀ, or of each of a stack of them."""
    if matrices.ndim > 2:
        return torch.stack([orthogonalised(matrix) for matrix in matrices])
    coefficients = (DEFAULT_A, DEFAULT_B, DEFAULT_C)
    return _zeropower_via_newtonschulz(matrices, coefficients, DEFAULT_NS_STEPS, EPS)


Piece = tuple[Tensor, ...]
"""The indices that a rank has of every dimension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """One matrix and where its pieces lie; ranks are numbered as in the flattened mesh."""

    shape: torch.Size
    pieces: tuple[Piece, ...]
    """The piece of every rank."""
    copies: tuple[int, ...]
    """Which whole copy of the matrix a rank's piece belongs to."""

    def piece_shape(self, rank: int) -> tuple[int, ...]:
        return tuple(len(part) for part in self.pieces[rank])


class WholeMatrices:
    """Whole matrices for a while, and the process groups that this takes."""

    def __init__(self) -> None:
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}

    def apply(
        self,
        parameters: Sequence[Tensor],
        values: Sequence[Tensor],
        function: Callable[[Tensor], Tensor],
    ) -> list[Tensor]:
        """This rank's pieces of `function(whole value)`, for every parameter.

        Args:
            parameters: They say how the values are cut; in the same order on every rank.
            values: Local values, placed as the parameters, all of one dtype.
            function: From a matrix (or a stack of matrices) to one of the same shape.
        """
        results: list[Tensor | None] = [None] * len(values)
        spread: dict[DeviceMesh, list[int]] = defaultdict(list)
        for index, (parameter, value) in enumerate(zip(parameters, values, strict=True)):
            if isinstance(parameter, DTensor) and _is_cut(parameter):
                spread[parameter.device_mesh].append(index)
            elif value.numel():
                results[index] = function(value)
            else:
                results[index] = value
        for mesh, indices in spread.items():
            size = mesh.size()
            # Equal work for all ranks of a batch: neighbours in size share one.
            indices.sort(key=lambda index: parameters[index].numel(), reverse=True)
            for start in range(0, len(indices), size):
                batch = indices[start : start + size]
                cuts = [_cut(parameters[index]) for index in batch]
                pieces = self._batch(mesh, cuts, [values[index] for index in batch], function)
                for index, piece in zip(batch, pieces, strict=True):
                    results[index] = piece
        return [result for result in results if result is not None]

    def _batch(
        self,
        mesh: DeviceMesh,
        cuts: list[_Cut],
        values: list[Tensor],
        function: Callable[[Tensor], Tensor],
    ) -> list[Tensor]:
        """Matrix `i` goes to rank `i`; ranks past the last one only send and receive."""
        group = self._group(mesh)
        me, size = dist.get_rank(group), dist.get_world_size(group)
        owners = range(len(cuts))
        sent = [
            values[owner].flatten()
            if owner in owners and cuts[owner].copies[me] == cuts[owner].copies[owner]
            else values[0].new_empty(0)
            for owner in range(size)
        ]
        mine = cuts[me] if me in owners else None
        shapes = [
            mine.piece_shape(rank) if mine and mine.copies[rank] == mine.copies[me] else (0,)
            for rank in range(size)
        ]
        received = _all_to_all(sent, [prod(shape) for shape in shapes], group)
        replies = [values[0].new_empty(0)] * size
        if mine:
            whole = values[0].new_empty(mine.shape)
            for rank, part in enumerate(received):
                if part.numel():
                    whole[torch.meshgrid(*mine.pieces[rank], indexing="ij")] = part.view(
                        shapes[rank]
                    )
            result = function(whole).to(whole.dtype)
            replies = [
                result[torch.meshgrid(*piece, indexing="ij")].flatten() for piece in mine.pieces
            ]
        counts = [
            prod(cuts[owner].piece_shape(me)) if owner in owners else 0 for owner in range(size)
        ]
        returned = _all_to_all(replies, counts, group)
        return [returned[owner].view(cuts[owner].piece_shape(me)) for owner in owners]

    def _group(self, mesh: DeviceMesh) -> dist.ProcessGroup:
        if mesh.ndim == 1:
            return mesh.get_group()
        ranks = tuple(mesh.mesh.flatten().tolist())
        if ranks not in self._groups:
            self._groups[ranks] = dist.new_group(list(ranks), use_local_synchronization=True)
        return self._groups[ranks]


def _all_to_all(
    sent: list[Tensor], counts: list[int], group: dist.ProcessGroup
) -> tuple[Tensor, ...]:
    whole = torch.cat(sent)
    received = whole.new_empty(sum(counts))
    dist.all_to_all_single(received, whole, counts, [part.numel() for part in sent], group=group)
    return received.split(counts)


def _is_cut(parameter: DTensor) -> bool:
    """Whether matrices themselves are cut, and not only a stack of them."""
    first_of_matrix = parameter.ndim - 2
    return any(
        isinstance(placement, Shard | _StridedShard) and placement.dim >= first_of_matrix
        for placement in parameter.placements
    )


def _cut(parameter: DTensor) -> _Cut:
    mesh, placements = parameter.device_mesh, parameter.placements
    order = sorted(range(mesh.ndim), key=lambda axis: isinstance(placements[axis], _StridedShard))
    sizes = tuple(mesh.size(axis) for axis in range(mesh.ndim))
    pieces, copies = [], []
    for coordinate in product(*(range(size) for size in sizes)):
        piece = [torch.arange(size) for size in parameter.shape]
        copy = 0
        for axis in order:
            placement = placements[axis]
            if isinstance(placement, Replicate):
                copy = copy * sizes[axis] + coordinate[axis]
                continue
            assert isinstance(placement, Shard | _StridedShard), placement
            groups = 1
            if isinstance(placement, _StridedShard) and not _cut_to_the_right(placements, axis):
                groups = placement.split_factor
            dim = placement.dim
            piece[dim] = _chunk(piece[dim], groups, sizes[axis], coordinate[axis])
        pieces.append(tuple(piece))
        copies.append(copy)
    return _Cut(shape=parameter.shape, pieces=tuple(pieces), copies=tuple(copies))


def _cut_to_the_right(placements: Sequence[Placement], axis: int) -> bool:
    here = placements[axis]
    assert isinstance(here, Shard | _StridedShard)
    return any(
        isinstance(other, Shard | _StridedShard) and other.dim == here.dim
        for other in placements[axis + 1 :]
    )


def _chunk(indices: Tensor, groups: int, count: int, place: int) -> Tensor:
    """The `place`-th of `count` parts of every group, as `torch.chunk` cuts (then empty ones)."""
    parts = []
    for group in indices.chunk(groups):
        chunks = group.chunk(count)
        parts.append(chunks[place] if place < len(chunks) else group[:0])
    return torch.cat(parts)
