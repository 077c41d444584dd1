"""Exact rejection sampling of drafts: the tokens that come out follow the target distribution.

For drafts x_1 … x_k drawn from q_1 … q_k and target distributions p_1 … p_(k+1), in order:

    x_i is accepted with chance min(1, p_i(x_i) / q_i(x_i));
    the first that is not is replaced by a token from norm(max(0, p_i - q_i)), and the rest dropped;
    when all are accepted, one more token comes from p_(k+1).

Leviathan, Kalman, Matias, 2211.17192, algorithm 1 and appendix A.1 (that this is exact); Chen et
al., 2302.01318, the same independently. p is the distribution after all of the request's parameters
(temperature, top-k, penalties, grammar), each p_i with the drafts before it in its history.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.serve.sampling.distribution import draw


@dataclass(frozen=True, slots=True)
class Claim:
    """Drafts of one completion, and the random numbers of its positions."""

    drafts: tuple[int, ...]
    """The drafted token ids, k of them."""
    probabilities: Tensor
    """The distributions q, [k, V], exactly what the drafts were drawn from."""
    tests: tuple[float, ...]
    """k numbers in [0, 1), for accepting."""
    draws: tuple[float, ...]
    """k + 1 numbers in [0, 1), for the last token wherever it falls."""


def verify(target: Tensor, claims: list[Claim]) -> list[tuple[tuple[int, ...], int]]:
    """Tokens (accepted drafts and one more) and the number of accepted drafts, per claim.

    Args:
        target: [Σ (k + 1), V] float32 probabilities, claim after claim.
        claims: In the same order.
    """
    accepted, rows, rejected = _accepted(target, claims)
    last = target[rows]
    refused = [at for at, one in enumerate(rejected) if one is not None]
    if refused:
        drafted = torch.stack([one for one in rejected if one is not None]).to(last)
        left = (last[refused] - drafted).clamp_min_(0.0)
        # p ≤ q everywhere but for rounding: the draft was refused by rounding too.
        empty = left.sum(-1) == 0.0
        left[empty] = last[refused][empty]
        last[refused] = left
    numbers = [claim.draws[count] for claim, count in zip(claims, accepted, strict=True)]
    tokens = draw(last, torch.tensor(numbers, dtype=torch.float64)).tolist()
    return [
        ((*claim.drafts[:count], token), count)
        for claim, count, token in zip(claims, accepted, tokens, strict=True)
    ]


def _accepted(
    target: Tensor, claims: list[Claim]
) -> tuple[list[int], list[int], list[Tensor | None]]:
    """Accepted drafts of each claim, the row of its last token, and q there if one was refused."""
    firsts, first = [], 0
    for claim in claims:
        firsts.append(first)
        first += len(claim.drafts) + 1
    at = [
        start + i
        for start, claim in zip(firsts, claims, strict=True)
        for i in range(len(claim.drafts))
    ]
    drafts = torch.tensor([token for claim in claims for token in claim.drafts])
    drafts = drafts.to(target.device)
    wanted = target[at, drafts].tolist()
    given = torch.cat([claim.probabilities for claim in claims]).to(target.device)
    offered = given.gather(1, drafts[:, None]).squeeze(-1).tolist()
    accepted, rows, rejected = [], [], []
    place = 0
    for start, claim in zip(firsts, claims, strict=True):
        size, count = len(claim.drafts), 0
        while count < size and claim.tests[count] * offered[place + count] < wanted[place + count]:
            count += 1
        accepted.append(count)
        rows.append(start + count)
        rejected.append(claim.probabilities[count] if count < size else None)
        place += size
    return accepted, rows, rejected
