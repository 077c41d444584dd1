"""From edited logits to the distribution that a token is drawn from.

In vLLM's order, each on what the one before left:

    temperature   l / T
    min_p         keeps tokens with p ≥ min_p · largest p       Nguyen et al., 2407.01082
    top_k         keeps the k most likely                       Fan et al., 1805.04833
    top_p         keeps the fewest most likely with Σp ≥ top_p  Holtzman et al., 1904.09751

Of equally likely tokens at a border some are kept, always the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.serve.messages import Sampling

FEW = 256
"""Most likely tokens that are looked at first where only top_p restricts."""
HEADROOM = 1e-6
"""Sums of probabilities in float32 are right to about this."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens of each row that may be drawn."""

    weights: Tensor
    """[R, K] float32, each row adding up to 1."""
    tokens: Tensor | None
    """[R, K] int64; None: K is the vocabulary."""

    def dense(self, vocab: int) -> Tensor:
        """[R, V] probabilities."""
        if self.tokens is None:
            return self.weights
        zeros = torch.zeros((len(self.weights), vocab), device=self.weights.device)
        return zeros.scatter_(1, self.tokens, self.weights)


def restricts(sampling: Sampling) -> bool:
    """Whether top_k or top_p is asked for, which need the most likely tokens in order."""
    return sampling.top_k > 0 or sampling.top_p < 1.0


def probabilities(logits: Tensor, samplings: list[Sampling]) -> Tensor:
    """[R, V] logits to [R, V] probabilities, one set of parameters per row; the logits are lost."""
    vocab = logits.shape[1]
    out = torch.empty_like(logits)
    for rows, found in candidates(logits, samplings):
        out[rows] = found.dense(vocab)
    return out


def candidates(logits: Tensor, samplings: list[Sampling]) -> list[tuple[Tensor, Candidates]]:
    """Groups of rows, [G] indices each, with what they may draw from; the logits are lost."""
    _scale(logits, samplings)
    open_rows = [row for row, one in enumerate(samplings) if not restricts(one)]
    cut_rows = [row for row, one in enumerate(samplings) if restricts(one)]
    groups = []
    if open_rows:
        rows = torch.tensor(open_rows, device=logits.device)
        mine = logits if not cut_rows else logits[rows]
        groups.append((rows, Candidates(mine.softmax(-1), None)))
    if cut_rows:
        rows = torch.tensor(cut_rows, device=logits.device)
        mine = logits if not open_rows else logits[rows]
        groups.extend(_cut(mine, rows, [samplings[row] for row in cut_rows]))
    return groups


def _scale(logits: Tensor, samplings: list[Sampling]) -> None:
    if any(one.temperature != 1.0 for one in samplings):
        temperatures = torch.tensor([one.temperature for one in samplings], device=logits.device)
        logits /= temperatures[:, None]
    if any(one.min_p > 0.0 for one in samplings):
        shares = torch.tensor([one.min_p for one in samplings], device=logits.device)
        least = logits.amax(-1, keepdim=True) + shares.log()[:, None]
        logits.masked_fill_(logits < least, float("-inf"))


def _cut(
    logits: Tensor, rows: Tensor, samplings: list[Sampling]
) -> list[tuple[Tensor, Candidates]]:
    """Look at few tokens where they suffice, and in the rest of the rows at as many as needed."""
    vocab = logits.shape[1]
    device = logits.device
    top_k = torch.tensor([min(one.top_k, vocab) or vocab for one in samplings], device=device)
    top_p = torch.tensor([one.top_p for one in samplings], device=device)
    limits = [one.top_k for one in samplings if 0 < one.top_k <= 4 * FEW]
    count = min(vocab, max(FEW, *limits) if limits else FEW)
    values, tokens = logits.topk(count, dim=-1)
    # A row's total is that of its own top_k tokens, or of the whole row.
    whole = logits.logsumexp(-1)
    few = top_k <= count
    total = torch.where(few, _mass(values, top_k), whole)
    share = (values - total[:, None]).exp()
    known = few | ((top_k == vocab) & (share.sum(-1) > top_p + HEADROOM))
    part = known.nonzero().squeeze(-1)
    rest = (~known).nonzero().squeeze(-1)
    groups = []
    if len(part):
        kept = _kept(share[part], top_k[part], top_p[part])
        groups.append((rows[part], Candidates(kept, tokens[part])))
    if len(rest):
        top_k, top_p = top_k[rest], top_p[rest]
        count = _needed((logits[rest] - whole[rest, None]).exp(), top_k, top_p)
        values, tokens = logits[rest].topk(count, dim=-1)
        total = torch.where(top_k < vocab, _mass(values, top_k), whole[rest])
        kept = _kept((values - total[:, None]).exp(), top_k, top_p)
        groups.append((rows[rest], Candidates(kept, tokens)))
    return groups


def _needed(share: Tensor, top_k: Tensor, top_p: Tensor) -> int:
    """Most likely tokens that hold every row's cut.

    Tokens of a share below (1 - top_p) / V together have less than 1 - top_p: none is needed.
    """
    vocab = share.shape[1]
    least = (1.0 - top_p - HEADROOM).clamp_min(0.0) / vocab
    candidates = (share >= least[:, None]).sum(-1)
    return int(torch.where(top_k < vocab, top_k, candidates).max())


def _mass(values: Tensor, top_k: Tensor) -> Tensor:
    """The logarithm of Σ exp over each row's first `top_k` of sorted values, [R]."""
    beyond = torch.arange(values.shape[1], device=values.device) >= top_k[:, None]
    return values.masked_fill(beyond, float("-inf")).logsumexp(-1)


def _kept(share: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Sorted shares, 0 where top_k or top_p leaves the token out; rows add up to 1 again."""
    before = share.cumsum(-1) - share
    ranks = torch.arange(share.shape[1], device=share.device)
    out = (ranks >= top_k[:, None]) | (before >= top_p[:, None])
    out[:, 0] = False  # the most likely always stays
    kept = share.masked_fill(out, 0.0)
    return kept / kept.sum(-1, keepdim=True)
