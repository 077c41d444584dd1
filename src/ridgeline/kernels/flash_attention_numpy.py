"""FlashAttention for a reader: one head, in NumPy, forward and backward.

    S = q kᵀ · scale,   P = softmax(S),   out = P v

never forming S. The forward goes over tiles of keys and keeps, for each query, the largest score
so far m, the sum of exp(score - m), and the weighted sum of values; when m grows, both sums shrink
by exp(m_old - m_new) (Dao et al., 2205.14135, algorithm 1). The backward makes each tile of P again
from one number a query, L = m + log(sum) (2307.08691, algorithm 2):

    dv = Pᵀ dout   dP = dout vᵀ   dS = P ∘ (dP - rowsum(dout ∘ out))   dq = dS k   dk = dSᵀ q

It is the second reference of the kernels, which do the same with many heads at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

Array = np.ndarray


def forward(
    q: Array, k: Array, v: Array, scale: float, *, causal: bool = False, tile: int = 16
) -> tuple[Array, Array]:
    """The results out [T, D] and L [T] of q [T, D], k and v [S, D]."""
    out, log_sums = np.zeros_like(q), np.full(len(q), -np.inf)
    for rows in _tiles(len(q), tile):
        largest = np.full(len(q[rows]), -np.inf)
        total, sums = np.zeros(len(q[rows])), np.zeros_like(q[rows])
        for keys in _tiles(len(k), tile):
            scores = _scores(q, k, rows, keys, scale, causal)
            new = np.maximum(largest, scores.max(1))
            safe = np.where(new == -np.inf, 0.0, new)  # a row that has seen no key yet
            weights, shrink = np.exp(scores - safe[:, None]), np.exp(largest - safe)
            total = total * shrink + weights.sum(1)
            sums = sums * shrink[:, None] + weights @ v[keys]
            largest = new
        seen = total > 0
        out[rows][seen] = sums[seen] / total[seen, None]
        log_sums[rows][seen] = largest[seen] + np.log(total[seen])
    return out, log_sums


def backward(
    dout: Array, out: Array, log_sums: Array, q: Array, k: Array, v: Array, scale: float,
    *, causal: bool = False, tile: int = 16,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """The gradients of q, k and v."""
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    along = (dout * out).sum(1)
    safe = np.where(log_sums == -np.inf, np.inf, log_sums)  # no key seen: every weight is 0
    for keys in _tiles(len(k), tile):
        for rows in _tiles(len(q), tile):
            scores = _scores(q, k, rows, keys, scale, causal)
            weights = np.exp(scores - safe[rows, None])
            dv[keys] += weights.T @ dout[rows]
            dscores = weights * (dout[rows] @ v[keys].T - along[rows, None]) * scale
            dq[rows] += dscores @ k[keys]
            dk[keys] += dscores.T @ q[rows]
    return dq, dk, dv


def _tiles(length: int, tile: int) -> Iterator[slice]:
    return (slice(start, min(start + tile, length)) for start in range(0, length, tile))


def _scores(q: Array, k: Array, rows: slice, keys: slice, scale: float, causal: bool) -> Array:
    scores = q[rows] @ k[keys].T * scale
    if causal:  # the last query stands beside the last key
        position = np.arange(len(q))[rows] + len(k) - len(q)
        scores[np.arange(len(k))[keys] > position[:, None]] = -np.inf
    return scores
