"""Matrices as products of two thin ones: torch's PowerSGD hook.

Vogels et al., "PowerSGD", arXiv 1905.13727, algorithms 1 and 2, with warm start and error feedback:
rank · (rows + columns) numbers of each matrix, all-reduced; vectors, and matrices that would not
halve, travel whole.

torch knows its memories by bucket, and buckets change after the first step and on resume. Here they
are taken apart by parameter then, and put together for the new bucket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd

from ridgeline.train.compression.bucket import Bucket, GradientScheme
from ridgeline.train.compression.counted import CountedGroup

_EPSILON = 1e-8
"""A gradient of zeros must not become 0/0."""
_LEAST_RATE = 2.0
"""The default of torch: a matrix that would not halve travels whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _GradBucket:
    """What torch's hook asks of a bucket; DDP's own lives only as long as the call of the hook."""

    bucket: Bucket

    def index(self) -> int:
        return self.bucket.position

    def buffer(self) -> Tensor:
        return self.bucket.buffer

    def gradients(self) -> list[Tensor]:
        return list(self.bucket.gradients)

    def is_last(self) -> bool:
        return self.bucket.last


class PowerSgd(GradientScheme):
    """torch's hook, with memories known by parameter."""

    def __init__(self, rank: int, counted: CountedGroup) -> None:
        self._rank = rank
        self._counted = counted
        # The hook leaves its first steps alone, which is not for it to decide here.
        self._torch = power_sgd.PowerSGDState(
            process_group=counted.group,
            matrix_approximation_rank=rank,
            start_powerSGD_iter=2,
            min_compression_rate=_LEAST_RATE,
            orthogonalization_epsilon=_EPSILON,
        )
        self._torch.iter = 2
        self._shapes: dict[int, dict[str, torch.Size]] = {}
        """Parameters of each bucket that torch has memories of."""
        self._errors: dict[str, Tensor] = {}
        self._factors: dict[str, Tensor] = {}

    def reduce(self, bucket: Bucket) -> None:
        """Factor the bucket's matrices and all-reduce the factors."""
        shapes = dict(
            zip(bucket.names, (gradient.shape for gradient in bucket.gradients), strict=True)
        )
        # In their order: sets of names are equal when a bucket was merely put in another order.
        if list(self._shapes.get(bucket.position, shapes)) != list(shapes):
            self._take_apart()
        if bucket.position not in self._shapes:
            self._shapes[bucket.position] = shapes
            self._put_together(bucket)
        before = self._torch.total_numel_after_compression
        hook = cast("Any", power_sgd.powerSGD_hook)
        hook(self._torch, _GradBucket(bucket=bucket)).wait()
        sent = self._torch.total_numel_after_compression - before
        self._counted.note_all_reduce(sent * bucket.buffer.element_size())

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """The errors and the right factors, by parameter."""
        self._take_apart()
        return {"error": dict(self._errors), "factor": dict(self._factors)}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Go on from there."""
        self._take_apart()
        self._errors = {name: one.clone() for name, one in state["error"].items()}
        self._factors = {name: one.clone() for name, one in state["factor"].items()}

    def _take_apart(self) -> None:
        for position, shapes in self._shapes.items():
            if position not in self._torch.error_dict:
                continue
            sizes = [shape.numel() for shape in shapes.values()]
            errors = self._torch.error_dict[position].split(sizes)
            self._errors |= {
                name: error.clone() for name, error in zip(shapes, errors, strict=True)
            }
            factored = self._factored(shapes)
            factors = self._torch.q_memory_dict[position].split(list(factored.values()))
            self._factors |= {
                name: factor.clone() for name, factor in zip(factored, factors, strict=True)
            }
        self._shapes.clear()
        for memories in (
            self._torch.error_dict,
            self._torch.p_memory_dict,
            self._torch.q_memory_dict,
        ):
            memories.clear()

    def _put_together(self, bucket: Bucket) -> None:
        position, shapes = bucket.position, self._shapes[bucket.position]
        if not all(name in self._errors for name in shapes):
            return
        like = bucket.buffer
        factored = self._factored(shapes)
        rows = sum(shapes[name][0] * self._rank_of(shapes[name]) for name in factored)
        self._torch.error_dict[position] = torch.cat([self._errors[name] for name in shapes])
        self._torch.p_memory_dict[position] = like.new_empty(rows)
        self._torch.q_memory_dict[position] = torch.cat(
            [like.new_empty(0), *(self._factors[name] for name in factored)]
        )

    def _factored(self, shapes: Mapping[str, torch.Size]) -> dict[str, int]:
        """Parameters that are factored, with the size of the right factor.

        In the order of torch's memory, which is grouped by the matrix's shape.
        """
        by_shape: dict[tuple[int, int], list[str]] = {}
        for name, shape in shapes.items():
            rows, columns = shape[0], shape.numel() // shape[0]
            worth, _, _ = power_sgd._should_compress(
                rows, columns, self._rank_of(shape), _LEAST_RATE
            )
            if worth:
                by_shape.setdefault((rows, columns), []).append(name)
        return {
            name: columns * self._rank_of(shapes[name])
            for (_, columns), names in by_shape.items()
            for name in names
        }

    def _rank_of(self, shape: torch.Size) -> int:
        return min(shape[0], shape.numel() // shape[0], self._rank)
