"""The token loss is cross entropy in fp32 plus the z-loss, over a vocabulary that may be split.

    loss = Σ over targets of  log Z − x_label + z · log² Z,   Z = Σ over the vocabulary of exp x

The z-loss keeps log Z near zero (PaLM, arXiv 2204.02311, section 5). Logits that are split over
ranks along the vocabulary (tensor parallelism) are never gathered: the ranks agree on the largest
logit, on Z and on the label's logit (Megatron-LM, arXiv 1909.08053, section 3).

The gradient with respect to x, softmax(x) · (1 + 2 z log Z) − onehot(label), is computed together
with the loss, a chunk of tokens at a time and kept in the logits' own precision, so that fp32
copies of the logits never exist whole and exp is evaluated once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from ridgeline.train.batch import IGNORED, Batch

_CHUNK_ELEMENTS = {"cpu": 2**20, "cuda": 2**26}
"""fp32 logits that exist at a time: near a cache on the host, enough to fill a GPU."""

Objective = Callable[[nn.Module, Any], Tensor]
"""The sum of losses over the targets of one micro-batch, a `MicroBatch` of the task. A distillation
brings its own."""


def token_loss(logits: Tensor, labels: Tensor, z_loss: float = 0.0) -> Tensor:
    """The sum of losses over the targets, a scalar in fp32.

    Args:
        logits: [..., vocabulary]; a DTensor may be sharded over the vocabulary along one mesh axis.
        labels: [...], `IGNORED` where there is no target.
        z_loss: Weight of log² Z. It steers training: under `torch.no_grad` (validation) the loss
            is the cross entropy alone.
    """
    if not torch.is_grad_enabled():
        z_loss = 0.0
    first, group = 0, None
    # From the whole vocabulary: ranks that share it unequally must cut the same chunks.
    rows = max(1, _chunk_elements(logits) // logits.shape[-1])
    if isinstance(logits, DTensor):
        logits, first, group = _local_columns(logits)
        rows *= dist.get_world_size(group) if group is not None else 1
    flat = logits.flatten(0, -2)
    loss: Tensor = _TokenLoss.apply(flat, labels.flatten(), z_loss, rows, first, group)
    return loss


def next_token(z_loss: float = 0.0) -> Objective:
    """The objective of language modelling, for any Hugging Face causal model."""

    def objective(model: nn.Module, batch: Batch) -> Tensor:
        output = model(input_ids=batch.input_ids, use_cache=False, **batch.positions)
        return token_loss(output.logits, batch.labels, z_loss)

    return objective


def _chunk_elements(logits: Tensor) -> int:
    return _CHUNK_ELEMENTS.get(logits.device.type, _CHUNK_ELEMENTS["cuda"])


def _local_columns(logits: DTensor) -> tuple[Tensor, int, dist.ProcessGroup | None]:
    """This rank's columns, the index of the first, and the group that has the others."""
    (placement,) = logits.placements
    if placement == Replicate():
        return logits.to_local(), 0, None
    assert isinstance(placement, Shard)
    assert placement.dim in {-1, logits.ndim - 1}
    mesh = logits.device_mesh
    _, first = Shard.local_shard_size_and_offset(
        logits.shape[-1], mesh.size(), mesh.get_local_rank()
    )
    return logits.to_local(), first, mesh.get_group()


class _TokenLoss(torch.autograd.Function):
    """Loss and gradient in one sweep over chunks of tokens."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        logits: Tensor,
        labels: Tensor,
        z_loss: float,
        rows: int,
        first: int,
        group: dist.ProcessGroup | None,
    ) -> Tensor:
        gradient = torch.empty_like(logits) if ctx.needs_input_grad[0] else None  # type: ignore[attr-defined]
        total = torch.zeros((), dtype=torch.float32, device=logits.device)
        for start in range(0, logits.shape[0], rows):
            part = slice(start, start + rows)
            chunk, weights = _chunk_loss(logits[part], labels[part], z_loss, first, group)
            total += chunk
            if gradient is not None:
                gradient[part] = weights
        ctx.gradient = gradient  # type: ignore[attr-defined]
        return total

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *outputs: Tensor) -> tuple[object, ...]:
        gradient = ctx.gradient  # type: ignore[attr-defined]
        ctx.gradient = None  # type: ignore[attr-defined]
        if gradient is None:
            raise RuntimeError("the gradient of a token loss was already taken")
        return gradient.mul_(outputs[0]), None, None, None, None, None


def _chunk_loss(
    logits: Tensor, labels: Tensor, z_loss: float, first: int, group: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor]:
    """The loss of some tokens, and its gradient in fp32. Shapes: [tokens, columns], [tokens]."""
    x = logits.float()
    if logits.dtype == torch.float32:
        x = x.clone()
    largest = x.amax(dim=-1) if x.shape[-1] else x.new_full(x.shape[:1], -torch.inf)
    if group is not None:
        dist.all_reduce(largest, dist.ReduceOp.MAX, group)
    x -= largest[:, None]
    counted = labels != IGNORED
    column = labels - first
    mine = counted & (column >= 0) & (column < x.shape[-1])
    column = torch.where(mine, column, 0)[:, None]
    at_label = torch.where(mine, _gathered(x, column), 0.0)
    z = x.exp_().sum(dim=-1)
    if group is not None:
        both = torch.stack([z, at_label])
        dist.all_reduce(both, dist.ReduceOp.SUM, group)
        z, at_label = both
    log_z = z.log() + largest
    loss = torch.where(counted, z.log() - at_label + z_loss * log_z.square(), 0.0).sum()
    x *= (torch.where(counted, 1.0 + 2.0 * z_loss * log_z, 0.0) / z)[:, None]
    if x.shape[-1]:
        x.scatter_add_(1, column, -mine.to(x.dtype)[:, None])
    return loss, x


def _gathered(x: Tensor, column: Tensor) -> Tensor:
    """`x[i, column[i]]`, for a rank without columns too."""
    return x.gather(1, column)[:, 0] if x.shape[-1] else x.new_zeros(x.shape[:1])
