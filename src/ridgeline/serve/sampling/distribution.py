"""From raw logits to the distribution that a token is drawn from, in vLLM's order.

First what changes single logits, before any temperature:

    grammar            tokens that break it: -∞
    min_tokens         EOS and stop ids: -∞ until so many tokens are there
    allowed, forbidden all others; what would complete a sequence: -∞
    logit_bias         l + bias                                        OpenAI API reference
    repetition         l / r if l > 0 else l · r, for tokens of prompt or completion
                                                                       CTRL, 1909.05858, sec. 4.1
    frequency          l - f · count in the completion                 OpenAI API reference
    presence           l - p · [count in the completion > 0]           OpenAI API reference
    thoughts           all but the closing mark: -∞ where the budget is spent

A row after drafts is treated as if these had been accepted. Then, each on what the one before left:

    temperature   l / T
    min_p         keeps tokens with p ≥ min_p · largest p       Nguyen et al., 2407.01082
    top_k         keeps the k most likely                       Fan et al., 1805.04833
    top_p         keeps the fewest most likely with Σp ≥ top_p  Holtzman et al., 1904.09751

A request may ask for these four in another order (`sampler_order.py`), and its row is cut alone.
Of equally likely tokens at a border some are kept, always the same ones. A token is drawn by
inverting the cumulative distribution, for which one random number suffices, where Gumbel noise
would need one per entry of the vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ridgeline.serve.messages import Sampling
from ridgeline.serve.sampling.state import SamplingState

FEW = 256
"""Most likely tokens that are looked at first where only top_p restricts."""
HEADROOM = 1e-6
"""Sums of probabilities in float32 are right to about this."""
SPAN = 512
"""Entries that are summed before the exact search looks inside."""


@dataclass(frozen=True, slots=True)
class LogitRow:
    """One row of logits: a completion's next token, or the one after some drafts."""

    state: SamplingState
    drafts: tuple[int, ...] = ()
    """Taken as accepted before this row."""


def edit(logits: Tensor, rows: list[LogitRow]) -> None:
    """Change [R, V] float32 logits in place, one row each."""
    _grammars(logits, rows)
    _endings(logits, rows)
    _allowed(logits, rows)
    _forbidden(logits, rows)
    _biases(logits, rows)
    _penalties(logits, rows)
    _thoughts(logits, rows)


def _grammars(logits: Tensor, rows: list[LogitRow]) -> None:
    if any(row.state.matcher is not None for row in rows):
        from ridgeline.serve.sampling.grammar import mask

        mask(logits, [(row.state.matcher, row.drafts) for row in rows])


def _endings(logits: Tensor, rows: list[LogitRow]) -> None:
    at: list[int] = []
    tokens: list[int] = []
    for index, row in enumerate(rows):
        state = row.state
        if state.num_tokens + len(row.drafts) < state.sampling.min_tokens:
            ending = {*state.eos_ids, *state.sampling.stop_ids}
            at.extend([index] * len(ending))
            tokens.extend(ending)
    if at:
        logits[torch.tensor(at), torch.tensor(tokens)] = float("-inf")


def _allowed(logits: Tensor, rows: list[LogitRow]) -> None:
    for index, row in enumerate(rows):
        allowed = row.state.sampling.allowed_ids
        if allowed:
            kept = torch.tensor(allowed, device=logits.device)
            values = logits[index, kept]
            logits[index] = float("-inf")
            logits[index, kept] = values


def _forbidden(logits: Tensor, rows: list[LogitRow]) -> None:
    at: list[int] = []
    tokens: list[int] = []
    for index, row in enumerate(rows):
        for sequence in row.state.sampling.forbidden:
            before = sequence[:-1]
            if row.state.last(len(before), row.drafts) == before:
                at.append(index)
                tokens.append(sequence[-1])
    if at:
        logits[torch.tensor(at), torch.tensor(tokens)] = float("-inf")


def _biases(logits: Tensor, rows: list[LogitRow]) -> None:
    at: list[int] = []
    tokens: list[int] = []
    values: list[float] = []
    for index, row in enumerate(rows):
        bias = row.state.sampling.logit_bias
        at.extend([index] * len(bias))
        tokens.extend(bias)
        values.extend(bias.values())
    if at:
        logits[torch.tensor(at), torch.tensor(tokens)] += torch.tensor(values, device=logits.device)


def _penalties(logits: Tensor, rows: list[LogitRow]) -> None:
    found = [
        (index, row.state.sampling, row.state.history.with_drafts(row.drafts))
        for index, row in enumerate(rows)
        if row.state.history is not None
    ]
    if not found:
        return
    sizes = [len(tokens) for _, _, (tokens, _) in found]

    def spread(values: list[float]) -> Tensor:
        return torch.from_numpy(np.repeat(np.array(values, np.float32), sizes)).to(logits.device)

    at = torch.from_numpy(np.repeat([index for index, _, _ in found], sizes)).to(logits.device)
    tokens = torch.from_numpy(np.concatenate([one[2][0] for one in found])).to(logits.device)
    counts = torch.from_numpy(np.concatenate([one[2][1] for one in found])).to(logits.device)
    repetition = spread([sampling.repetition_penalty for _, sampling, _ in found])
    frequency = spread([sampling.frequency_penalty for _, sampling, _ in found])
    presence = spread([sampling.presence_penalty for _, sampling, _ in found])
    values = logits[at, tokens]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= frequency * counts
    values -= presence * (counts > 0)
    logits[at, tokens] = values


def _thoughts(logits: Tensor, rows: list[LogitRow]) -> None:
    for index, row in enumerate(rows):
        count = row.state.thoughts
        if count is None or not count.is_spent(row.drafts):
            continue
        close = count.budget.close
        if logits[index, close] > -math.inf:  # else a grammar lets it not come
            logits[index] = -math.inf
            logits[index, close] = 0.0


@dataclass(frozen=True, slots=True)
class TokenCandidates:
    """The tokens of each row that may be drawn."""

    weights: Tensor
    """[R, K] float32, each row adding up to 1."""
    tokens: Tensor | None
    """[R, K] int64; None: K is the vocabulary."""

    def dense(self, vocab: int) -> Tensor:
        """The candidates as [R, V] probabilities."""
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


def candidates(logits: Tensor, samplings: list[Sampling]) -> list[tuple[Tensor, TokenCandidates]]:
    """Groups of rows, [G] indices each, with what they may draw from; the logits are lost."""
    groups = [
        (torch.tensor([row], device=logits.device), _in_its_order(logits[row], one))
        for row, one in enumerate(samplings)
        if one.chain
    ]
    usual = [row for row, one in enumerate(samplings) if not one.chain]
    _scale(logits, samplings)
    open_rows = [row for row in usual if not restricts(samplings[row])]
    cut_rows = [row for row in usual if restricts(samplings[row])]
    if open_rows:
        rows = torch.tensor(open_rows, device=logits.device)
        mine = logits if len(open_rows) == len(samplings) else logits[rows]
        groups.append((rows, TokenCandidates(mine.softmax(-1), None)))
    if cut_rows:
        rows = torch.tensor(cut_rows, device=logits.device)
        mine = logits if len(cut_rows) == len(samplings) else logits[rows]
        groups.extend(_cut(mine, rows, [samplings[row] for row in cut_rows]))
    return groups


def _in_its_order(logits: Tensor, sampling: Sampling) -> TokenCandidates:
    """What a row [V] may draw from, cut in the order that its request asks for."""
    values, tokens = logits.sort(descending=True)
    for name in sampling.chain:
        match name:
            case "temperature":
                values = values / sampling.temperature
            case "top_k":
                values = values[: sampling.top_k]
            case "min_p":
                values = values[values >= values[0] + math.log(sampling.min_p)]
            case "top_p":
                share = values.softmax(-1)
                kept = int((share.cumsum(-1) - share < sampling.top_p).sum())
                values = values[: max(1, kept)]
    return TokenCandidates(values.softmax(-1)[None], tokens[None, : len(values)])


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
) -> list[tuple[Tensor, TokenCandidates]]:
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
        groups.append((rows[part], TokenCandidates(kept, tokens[part])))
    if len(rest):
        top_k, top_p = top_k[rest], top_p[rest]
        count = _needed((logits[rest] - whole[rest, None]).exp(), top_k, top_p)
        values, tokens = logits[rest].topk(count, dim=-1)
        total = torch.where(top_k < vocab, _mass(values, top_k), whole[rest])
        kept = _kept((values - total[:, None]).exp(), top_k, top_p)
        groups.append((rows[rest], TokenCandidates(kept, tokens)))
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


def draw(weights: Tensor, numbers: Tensor) -> Tensor:
    """Draw an entry per row, by chances proportional to weights: [R, V] and [R] to [R] int64.

    The first entry at which the cumulative weight exceeds `number` · total, summed in float64: over
    spans first, then inside one, so that the vocabulary is read once and nothing that large is
    written. Entries of weight 0 are never drawn.

    Args:
        weights: Not negative, at least one above 0; need not add up to 1.
        numbers: In [0, 1).
    """
    rows, vocab = weights.shape
    spans = -(-vocab // SPAN)
    full = vocab // SPAN
    sums = torch.empty((rows, spans), dtype=torch.float64, device=weights.device)
    sums[:, :full] = weights[:, : full * SPAN].unflatten(1, (full, SPAN)).sum(-1) if full else 0.0
    if full < spans:
        sums[:, full:] = weights[:, full * SPAN :].sum(-1, keepdim=True)
    numbers = numbers.to(weights.device, torch.float64)
    span, below = _invert(sums, numbers * sums.sum(-1))
    columns = span[:, None] * SPAN + torch.arange(SPAN, device=weights.device)
    inside = weights.gather(1, columns.clamp_max(vocab - 1)).double()
    inside.masked_fill_(columns >= vocab, 0.0)
    entry, _ = _invert(inside, below)
    return span * SPAN + entry


def _invert(weights: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """First entry whose cumulative weight exceeds the target, and what is left of it there."""
    cumulative = weights.cumsum(-1)
    found = torch.searchsorted(cumulative, targets[:, None], right=True).squeeze(-1)
    # Rounding may leave the target at or above the last sum: the last entry with weight is meant.
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous()).squeeze(-1)
    found = torch.minimum(found, last)
    before = cumulative.gather(1, found[:, None]) - weights.gather(1, found[:, None])
    return found, (targets - before.squeeze(-1)).clamp_min(0.0)
