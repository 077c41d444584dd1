"""Attention and its gradients on a CPU, some queries at a time: no matrix of all weights.

    forward(problem, inputs)      out and log_sums
    backward(problem, …)          every gradient, from weights that are made again

What the Triton kernels compute, in PyTorch: the same masks, the same random numbers of dropout, and
float32 between the inputs and the results (float64 for float64).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ridgeline.kernels.attention_mask import seen_blocks, visible
from ridgeline.kernels.flash_problem import FlashProblem
from ridgeline.kernels.philox import kept_weights

_WEIGHTS_AT_ONCE = 2**20
"""Weights that exist together, over all rows and heads of a batch."""


class _Part(NamedTuple):
    """Some queries of some rows of the batch, and the keys that they may see."""

    batch: slice
    """Rows of the tensors."""
    queries: slice
    """Places in the tensors."""
    keys: slice
    first_row: int
    """The number of the first query within its sequence."""
    first_key: int
    shift: int
    first_sequence: int
    """The number of the first row in random numbers."""


class _Chunk(NamedTuple):
    """A part with its scores [B, KV, G, T, S]; what is not seen is at minus infinity."""

    part: _Part
    q: Tensor
    k: Tensor
    v: Tensor
    scores: Tensor
    slope: Tensor | None
    """What the soft cap multiplies the scores' gradient with."""
    kept: Tensor | None
    """What weights are multiplied with by dropout."""


def forward(problem: FlashProblem, inputs: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The results out, laid out as queries are, and log_sums [B, H, T]."""
    queries = inputs[0]
    out = torch.zeros_like(queries)
    log_sums = queries.new_full(queries.shape[:3], float("-inf"), dtype=_wide(queries))
    for chunk in _chunks(problem, inputs):
        logs = chunk.scores.logsumexp(-1)
        if problem.sinks is not None:
            logs = torch.logaddexp(logs, _sinks(problem, chunk).expand_as(logs))
        weights = torch.exp(chunk.scores - _finite(logs)[..., None])
        if chunk.kept is not None:
            weights = weights * chunk.kept
        part = chunk.part
        found = (weights @ chunk.v[:, :, None]).flatten(1, 2)
        out[part.batch, :, part.queries] = found.to(out.dtype)
        log_sums[part.batch, :, part.queries] = logs.flatten(1, 2)
    return out, log_sums


def backward(
    problem: FlashProblem,
    inputs: tuple[Tensor, Tensor, Tensor],
    results: tuple[Tensor, Tensor],
    upper: tuple[Tensor, Tensor | None],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of queries, keys, values, and what each row's scores' gradient is less."""
    wide = _wide(inputs[0])
    (out, log_sums), (dout, dlog_sums) = results, upper
    along = (dout.to(wide) * out.to(wide)).sum(-1)
    if dlog_sums is not None:
        along = along - dlog_sums
    dq = torch.zeros_like(inputs[0])
    dk, dv = (torch.zeros_like(one, dtype=wide) for one in inputs[1:])
    for chunk in _chunks(problem, inputs):
        part, groups = chunk.part, chunk.q.shape[1:3]
        rows = (part.batch, slice(None), part.queries)
        logs, less, up = (
            one[rows].to(wide).unflatten(1, groups) for one in (log_sums, along, dout)
        )
        weights = torch.exp(chunk.scores - _finite(logs)[..., None])
        change = up @ chunk.v[:, :, None].transpose(-1, -2)
        applied = weights
        if chunk.kept is not None:
            applied, change = weights * chunk.kept, change * chunk.kept
        change = (change - less[..., None]) * weights * problem.scale
        if chunk.slope is not None:
            change = change * chunk.slope
        keys = (part.batch, slice(None), part.keys)
        dv[keys] += (applied.transpose(-1, -2) @ up).sum(2)
        dk[keys] += (change.transpose(-1, -2) @ chunk.q).sum(2)
        dq[rows] = (change @ chunk.k[:, :, None]).flatten(1, 2).to(dq.dtype)
    return dq, dk.to(inputs[1].dtype), dv.to(inputs[2].dtype), along.contiguous()


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _finite(logs: Tensor) -> Tensor:
    """Infinity for rows that see nothing, so that their weights are 0."""
    return logs.masked_fill(logs == float("-inf"), float("inf"))


def _sinks(problem: FlashProblem, chunk: _Chunk) -> Tensor:
    assert problem.sinks is not None
    return problem.sinks.to(chunk.scores.dtype).view(1, *chunk.q.shape[1:3], 1)


def _chunks(problem: FlashProblem, inputs: tuple[Tensor, Tensor, Tensor]) -> Iterator[_Chunk]:
    queries, keys, values = inputs
    wide, groups = _wide(queries), (keys.shape[1], queries.shape[1] // keys.shape[1])
    seed = int(problem.seed.item()) if problem.seed is not None and problem.dropout else 0
    for part in _parts(problem, queries, keys):
        q = queries[part.batch, :, part.queries].to(wide).unflatten(1, groups)
        k, v = (one[part.batch, :, part.keys].to(wide) for one in (keys, values))
        scores = (q @ k[:, :, None].transpose(-1, -2)) * problem.scale
        slope = None
        if problem.softcap is not None:
            capped = torch.tanh(scores / problem.softcap)
            scores, slope = capped * problem.softcap, 1 - capped.square()
        scores = scores.masked_fill(~_seen(problem, part, scores.shape), float("-inf"))
        kept = None
        if problem.dropout:
            kept = _kept(problem, part, scores.shape, seed).to(wide) * problem.kept_scale
        yield _Chunk(part, q, k, v, scores, slope, kept)


def _places(part: _Part, shape: torch.Size, device: torch.device) -> tuple[Tensor, Tensor]:
    rows = torch.arange(part.first_row, part.first_row + shape[3], device=device)
    return rows, torch.arange(part.first_key, part.first_key + shape[4], device=device)


def _seen(problem: FlashProblem, part: _Part, shape: torch.Size) -> Tensor:
    """Broadcasts to [B, KV, G, T, S]."""
    device = torch.device("cpu")
    rows, keys = _places(part, shape, device)
    bounds = None if problem.bounds is None else problem.bounds[:, part.batch]
    seen = visible(problem.band, rows, keys, part.shift, bounds)[:, None, None]
    if problem.blocks is None:
        return seen
    blocks = seen_blocks(problem.blocks, problem.block_size, rows, keys)
    per_head = blocks.shape[1] > 1
    return seen & (blocks.unflatten(1, shape[1:3]) if per_head else blocks[:, :, None])


def _kept(problem: FlashProblem, part: _Part, shape: torch.Size, seed: int) -> Tensor:
    rows, keys = _places(part, shape, torch.device("cpu"))
    heads = shape[1] * shape[2]
    numbers = torch.arange(shape[0] * heads) + part.first_sequence * heads
    return kept_weights(problem.dropout, seed, numbers, rows, keys).view(shape)


def _parts(problem: FlashProblem, queries: Tensor, keys: Tensor) -> Iterator[_Part]:
    """Every sequence of a packed batch by itself, or all rows together, in chunks of queries."""
    batch, heads, length, _ = queries.shape
    if problem.query_starts is None:
        spans = [(slice(0, batch), 0, length, 0, keys.shape[2], 0)]
    else:
        assert problem.key_starts is not None
        of_queries, of_keys = problem.query_starts.tolist(), problem.key_starts.tolist()
        spans = [
            (slice(0, 1), *of_queries[n : n + 2], *of_keys[n : n + 2], n)
            for n in range(len(of_queries) - 1)
        ]
    left, right = problem.band
    for rows, start, stop, key_start, key_stop, number in spans:
        num_queries, num_keys = stop - start, key_stop - key_start
        shift = num_keys - num_queries
        step = max(1, _WEIGHTS_AT_ONCE // max(1, batch * heads * num_keys))
        for first in range(0, num_queries, step):
            behind = min(first + step, num_queries)
            low = 0 if left is None else max(0, first + shift - left)
            high = num_keys if right is None else min(num_keys, behind + shift + right)
            yield _Part(
                rows,
                slice(start + first, start + behind),
                slice(key_start + low, key_start + max(low, high)),
                first,
                low,
                shift,
                number,
            )
