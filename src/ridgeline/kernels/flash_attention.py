"""FlashAttention, forward and backward: attention whose matrix of weights never exists.

    s_ij = scale · q_i·k_j, then c tanh(s_ij / c) where a soft cap c is given
    L_i  = log( Σ_j exp(s_ij) + exp(sink) )          over the keys j that query i sees
    out_i = Σ_j exp(s_ij - L_i) · m_ij · v_j

m_ij is 0 for weights that dropout drops and 1 / (1 - p) for those that stay. Queries of a group
share a key head (Ainslie et al., 2305.13245). Rows that see nothing give zeros and L = -∞. With
P = exp(s - L), dP = (dout vᵀ) ∘ m and A_i = dout_i·out_i - dL_i (Dao, 2307.08691, section 3.1.2)

    dv = (P ∘ m)ᵀ dout     ds = P ∘ (dP - A)     dq = scale ds k     dk = scale dsᵀ q
    dsink = -Σ_i exp(sink - L_i) A_i

`attention_mask.py` says which keys a query sees, `flash_attention_numpy.py` how it works.
"""

# ruff: noqa: ARG001  (torch calls shapes and contexts by one signature)

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ridgeline.errors import InputError
from ridgeline.kernels import flash_attention_chunks as chunks
from ridgeline.kernels.arguments import (
    check_floats,
    check_softcap,
    in_dtype_of_autocast,
    refuse_second_derivatives,
    wide,
)
from ridgeline.kernels.attention_mask import (
    AttentionMask,
    document_bounds,
    seen_blocks,
    visible,
)
from ridgeline.kernels.flash_problem import SCHEMA, FlashProblem
from ridgeline.kernels.philox import kept_weights
from ridgeline.kernels.triton import takes

_OPERATORS = torch.library.Library("ridgeline", "FRAGMENT")
_OPERATORS.define(
    f"flash_attention(Tensor queries, Tensor keys, Tensor values, {SCHEMA}) -> (Tensor, Tensor)"
)
_OPERATORS.define(
    "flash_attention_backward(Tensor dout, Tensor? dlog_sums, Tensor out, Tensor log_sums,"
    f" Tensor queries, Tensor keys, Tensor values, {SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor)"
)
EVERYTHING = AttentionMask()


@dataclass(frozen=True, slots=True)
class Dropout:
    """Which share of the weights is dropped."""

    share: float
    seed: int | Tensor | None = None
    """The same seed drops the same weights, on every device; None: torch's generator draws one."""

    def seed_on(self, device: torch.device) -> Tensor:
        """The seed as an operator takes it, int64 [1]."""
        if isinstance(self.seed, Tensor):
            return self.seed.reshape(1).to(device, torch.int64)
        if self.seed is None:
            return torch.randint(2**62, (1,), device=device)
        return torch.tensor([self.seed], dtype=torch.int64, device=device)


class AttentionResult(NamedTuple):
    """The results of one call of attention."""

    out: Tensor
    """The result of each query, in the dtype and layout of the queries."""
    log_sums: Tensor
    """L of the formula above, float32 [B, H, T] ([H, T] of a packed batch); it has a gradient."""


def flash_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    mask: AttentionMask = EVERYTHING,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: Dropout | None = None,
) -> AttentionResult:
    """Attend, with every gradient.

    Args:
        queries: [B, H, T, D], or [T, H, D] where the mask has sequences; any strides.
        keys: [B, KV, S, D] or [S, KV, D] in the same dtype (under autocast all take its); KV
            divides H.
        values: As keys.
        mask: Which keys a query sees.
        scale: The factor of the scores; None: 1 / √D.
        softcap: Scores come no farther from 0 than this (Gemma 2).
        sinks: [H] logits that take weight from all keys (GPT-OSS).
        dropout: Of weights, in training.

    Raises:
        InputError: Shapes that do not fit each other.
    """
    packed = mask.sequences is not None
    check_floats("flash_attention", queries=queries, keys=keys, values=values, sinks=sinks)
    check_softcap(softcap)
    queries, keys, values = in_dtype_of_autocast(queries, keys, values)
    _check(queries, keys, values, sinks, packed=packed)
    if packed:
        queries, keys, values = (one.transpose(0, 1)[None] for one in (queries, keys, values))
    batch, heads, length, dim = queries.shape
    mask.check(batch, heads, length, keys.shape[2], queries.device)
    if dropout is not None and not 0 <= dropout.share < 1:
        raise InputError(f"a dropout of {dropout.share}; give 0 or more, below 1")
    drops = dropout is not None and dropout.share > 0
    sequences, documents = mask.sequences, mask.documents
    out, log_sums = torch.ops.ridgeline.flash_attention(
        *(_dense(one) for one in (queries, keys, values)),
        sinks,
        dropout.seed_on(queries.device) if drops and dropout is not None else None,
        None if sequences is None else sequences.query_starts,
        None if sequences is None else sequences.key_starts,
        None if documents is None else document_bounds(documents),
        mask.blocks,
        1.0 / math.sqrt(dim) if scale is None else float(scale),
        *mask.band,
        None if softcap is None else float(softcap),
        dropout.share if dropout is not None else 0.0,
        mask.block_size,
        length if sequences is None else sequences.longest_queries,
        keys.shape[2] if sequences is None else sequences.longest_keys,
    )
    if packed:
        return AttentionResult(out[0].transpose(0, 1), log_sums[0])
    return AttentionResult(out, log_sums)


def _check(
    queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None, *, packed: bool
) -> None:
    dims = 3 if packed else 4
    shapes = [tuple(one.shape) for one in (queries, keys, values)]
    fits = all(len(shape) == dims for shape in shapes) and shapes[1] == shapes[2]
    heads_at = 1
    if fits:
        heads, key_heads = shapes[0][heads_at], shapes[1][heads_at]
        fits = bool(key_heads) and heads % key_heads == 0 and shapes[0][-1] == shapes[1][-1]
        fits = fits and bool(shapes[0][-1]) and (packed or shapes[0][0] == shapes[1][0])
    alike = queries.dtype == keys.dtype == values.dtype
    if not fits or not alike:
        given = ", ".join(
            f"{one.dtype} {tuple(one.shape)}".removeprefix("torch.")
            for one in (queries, keys, values)
        )
        wanted = "[T, H, D] and twice [S, KV, D]" if packed else "[B, H, T, D], twice [B, KV, S, D]"
        raise InputError(
            f"queries, keys and values are {given}; give {wanted} of one dtype, KV a divisor of H"
        )
    if sinks is not None and sinks.shape != (queries.shape[heads_at],):
        raise InputError(f"sinks are {tuple(sinks.shape)}; give [{queries.shape[heads_at]}]")


def _dense(heads: Tensor) -> Tensor:
    """With a head's numbers side by side; all else may lie as it does."""
    return heads if heads.stride(-1) == 1 or heads.shape[-1] == 1 else heads.contiguous()


def flash_attention_reference(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    mask: AttentionMask = EVERYTHING,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: Dropout | None = None,
) -> AttentionResult:
    """Step by step with the whole matrix in PyTorch, differentiable; float64 stays float64."""
    options: dict[str, Any] = {
        "scale": scale,
        "softcap": softcap,
        "sinks": sinks,
        "dropout": dropout,
    }
    if mask.sequences is not None:
        return _sequence_by_sequence(queries, keys, values, mask, **options)
    return _all_weights((queries, keys, values), mask, first=0, **options)


def _all_weights(
    tensors: tuple[Tensor, Tensor, Tensor],
    mask: AttentionMask,
    *,
    first: int,
    scale: float | None,
    softcap: float | None,
    sinks: Tensor | None,
    dropout: Dropout | None,
) -> AttentionResult:
    """All rows of a batch at once; `first` is the number of its first row for dropout."""
    queries, keys, values = tensors
    dtype = wide(queries.dtype)
    batch, heads, length, dim = queries.shape
    num_keys, group = keys.shape[2], heads // keys.shape[1]
    k, v = (one.to(dtype).repeat_interleave(group, 1) for one in (keys, values))
    scores = queries.to(dtype) @ k.transpose(-1, -2) * (dim**-0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    rows, places = (torch.arange(size, device=queries.device) for size in (length, num_keys))
    bounds = None if mask.documents is None else document_bounds(mask.documents)
    seen = visible(mask.band, rows, places, num_keys - length, bounds)[:, None]
    if mask.blocks is not None:
        seen = seen & seen_blocks(mask.blocks, mask.block_size, rows, places)
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        extra = sinks.to(dtype)[None, :, None, None].expand(batch, -1, length, 1)
        scores = torch.cat([scores, extra], -1)
    seen_any = (scores > float("-inf")).any(-1, keepdim=True)
    scores = torch.where(seen_any, scores, 0.0)
    weights = torch.where(seen_any, scores.softmax(-1), 0.0)[..., :num_keys]
    log_sums = scores.logsumexp(-1).masked_fill(~seen_any[..., 0], float("-inf"))
    if dropout is not None and dropout.share > 0:
        assert isinstance(dropout.seed, int)
        numbers = torch.arange(batch * heads) + first * heads
        kept = kept_weights(dropout.share, dropout.seed, numbers, rows.cpu(), places.cpu())
        weights = weights * kept.view(weights.shape).to(queries.device) / (1 - dropout.share)
    return AttentionResult((weights @ v).to(queries.dtype), log_sums)


def _sequence_by_sequence(
    queries: Tensor, keys: Tensor, values: Tensor, mask: AttentionMask, **options: Any
) -> AttentionResult:
    """A packed batch, one sequence after another; dropout counts sequences as rows of a batch."""
    assert mask.sequences is not None
    alone = AttentionMask(causal=mask.causal, window=mask.window)
    starts = [one.tolist() for one in (mask.sequences.query_starts, mask.sequences.key_starts)]
    found = [
        _all_weights(
            (
                _of_sequence(queries, starts[0], number),
                _of_sequence(keys, starts[1], number),
                _of_sequence(values, starts[1], number),
            ),
            alone,
            first=number,
            **options,
        )
        for number in range(len(starts[0]) - 1)
    ]
    return AttentionResult(
        torch.cat([one.out[0].transpose(0, 1) for one in found]),
        torch.cat([one.log_sums[0] for one in found], 1),
    )


def _of_sequence(tokens: Tensor, starts: list[int], number: int) -> Tensor:
    return tokens[starts[number] : starts[number + 1]].transpose(0, 1)[None]


def _forward(queries: Tensor, keys: Tensor, values: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    problem = FlashProblem.of(queries.shape[0], given)
    if takes(queries):
        from ridgeline.kernels.triton import flash_attention as kernel

        return kernel.forward(problem, (queries, keys, values))
    return chunks.forward(problem, (queries, keys, values))


def _backward(
    dout: Tensor,
    dlog_sums: Tensor | None,
    out: Tensor,
    log_sums: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *given: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    problem = FlashProblem.of(queries.shape[0], given)
    upper, results = (_dense(dout), dlog_sums), (out, log_sums)
    if takes(queries):
        from ridgeline.kernels.triton import flash_attention as kernel

        *gradients, along = kernel.backward(problem, (queries, keys, values), results, upper)
    else:
        *gradients, along = chunks.backward(problem, (queries, keys, values), results, upper)
    if problem.sinks is None:
        return gradients[0], gradients[1], gradients[2], along.new_empty(0)
    taken = torch.exp(problem.sinks.to(log_sums.dtype)[None, :, None] - log_sums)
    outside = log_sums == float("-inf")  # tokens of no sequence
    dsinks = -(taken * along).masked_fill(outside, 0.0).sum((0, 2))
    return gradients[0], gradients[1], gradients[2], dsinks.to(problem.sinks.dtype)


_OPERATORS.impl("flash_attention", _forward, "CompositeExplicitAutograd")
_OPERATORS.impl("flash_attention_backward", _backward, "CompositeExplicitAutograd")


@torch.library.register_fake("ridgeline::flash_attention")
def _forward_shapes(queries: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    log_sums = queries.new_empty(queries.shape[:3], dtype=wide(queries.dtype))
    return torch.empty_like(queries), log_sums


@torch.library.register_fake("ridgeline::flash_attention_backward")
def _backward_shapes(
    dout: Tensor,
    dlog_sums: Tensor | None,
    out: Tensor,
    log_sums: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    sinks: Tensor | None,
    *_: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    of_sinks = log_sums.new_empty(0) if sinks is None else torch.empty_like(sinks)
    like = (torch.empty_like(one) for one in (queries, keys, values))
    return *like, of_sinks  # type: ignore[return-value]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output, *inputs[:9])
    ctx.numbers = inputs[9:]


def _differentiate(ctx: Any, dout: Tensor | None, dlog_sums: Tensor | None) -> Any:
    out, log_sums, queries, keys, values, sinks, *rest = ctx.saved_tensors
    nothing = (None,) * (len(rest) + len(ctx.numbers))
    if dout is None and dlog_sums is None:
        return None, None, None, None, *nothing
    if dout is None:
        dout = torch.zeros_like(out)
    dq, dk, dv, dsinks = torch.ops.ridgeline.flash_attention_backward(
        dout, dlog_sums, out, log_sums, queries, keys, values, sinks, *rest, *ctx.numbers
    )
    return dq, dk, dv, None if sinks is None else dsinks, *nothing


torch.library.register_autograd(
    "ridgeline::flash_attention", _differentiate, setup_context=_keep, lib=_OPERATORS
)
refuse_second_derivatives("flash_attention_backward", _OPERATORS)
