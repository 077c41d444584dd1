"""Rows of logits in, tokens out, for a whole batch of completions with their own parameters.

A completion with k drafts has k + 1 rows: row j holds the logits after draft j - 1, and after its
ancestors where drafts are a tree. Drafts that are
certain (no probabilities: n-gram, or any drafter under greedy) need no test of their own: the token
of every row is picked as if there were no drafts, and drafts count as accepted while they are what
was picked. That is exact, accepts draft x with p(x), which no exact rule can exceed, and gives the
same tokens for the same seed as without drafts.

Drafts x_1 … x_k drawn from q_1 … q_k are checked against p_1 … p_(k+1) by exact rejection sampling:

    x_i is accepted with chance min(1, p_i(x_i) / q_i(x_i));
    the first that is not is replaced by a token from norm(max(0, p_i - q_i)), and the rest dropped;
    when all are accepted, one more token comes from p_(k+1).

Leviathan, Kalman, Matias, 2211.17192, algorithm 1 and appendix A.1 (that this is exact); Chen et
al., 2302.01318, the same independently. p is the distribution after all of the request's parameters
(temperature, top-k, penalties, grammar), each p_i with the drafts before it in its history.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ridgeline.batching.draft_tree import accepted_path
from ridgeline.errors import InputError
from ridgeline.serve.messages import Sampling
from ridgeline.serve.sampling.distribution import LogitRow, candidates, draw, edit, probabilities
from ridgeline.serve.sampling.logprobs import token_logprobs
from ridgeline.serve.sampling.state import Picked, Purpose, SamplingState, check_finite


class NoTokenLeft(InputError):
    """What a request forbids leaves nothing that could come next."""

    def __init__(self, limits: list[str], num_tokens: int) -> None:
        super().__init__(
            f"no token may follow the {num_tokens} of this answer: {' and '.join(limits)} "
            f"forbid{'' if len(limits) > 1 else 's'} every one; allow more, or give fewer "
            "max_tokens"
        )
        self.parameter = limits[0]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A completion whose next tokens are to be picked."""

    state: SamplingState
    drafts: tuple[int, ...] = ()
    draft_probabilities: Tensor | None = None
    """[len(drafts), V] that the drafts were drawn from; None: they are certain."""
    parents: tuple[int, ...] = ()
    """Which draft each one follows, certain ones only (`batching/draft_tree.py`); none: a chain."""

    @property
    def rows(self) -> list[LogitRow]:
        """What stands before each row of logits: the root's row, then that of every draft."""
        if not self.parents:
            before = [self.drafts[:count] for count in range(len(self.drafts) + 1)]
        else:
            before = [()]
            for token, parent in zip(self.drafts, self.parents, strict=True):
                before.append((*before[parent + 1], token))
        return [LogitRow(self.state, drafts) for drafts in before]

    @property
    def drawn(self) -> bool:
        """Whether the drafts came from a distribution that counts."""
        return bool(self.drafts) and self.draft_probabilities is not None and not self.state.greedy


def pick(logits: Tensor, wanted: list[Wanted]) -> list[Picked]:
    """Next tokens of every completion.

    Args:
        logits: [Σ (1 + drafts), V] float32, in the order of `wanted`; overwritten.
        wanted: The completions; nothing of them changes here.

    Raises:
        NotFinite: The model gave some row no numbers.
        NoTokenLeft: A request allows no token at all where it has come to.
    """
    if not wanted:
        return []
    if all(one.state.plain for one in wanted):
        return _matched(wanted, _likeliest(logits).tolist())
    rows = [row for one in wanted for row in one.rows]
    assert len(rows) == len(logits)
    reported = [at for at, row in enumerate(rows) if row.state.sampling.logprobs is not None]
    raw = logits[reported] if reported else None
    edit(logits, rows)
    _check_choice(logits, rows)
    tokens = _each_row(logits, rows, wanted)
    picked = _matched(wanted, tokens)
    _verified(logits, wanted, picked)
    if raw is not None:
        _report(raw, wanted, picked)
    return picked


def _check_choice(logits: Tensor, rows: list[LogitRow]) -> None:
    """Raise `NoTokenLeft` where all that a request forbids is everything."""
    limited = [at for at, row in enumerate(rows) if _limits(row.state.sampling)]
    if not limited:
        return
    for at, best in zip(limited, logits[limited].amax(-1).tolist(), strict=True):
        if best == -math.inf:
            state = rows[at].state
            raise NoTokenLeft(_limits(state.sampling), state.num_tokens + len(rows[at].drafts))


def _limits(sampling: Sampling) -> list[str]:
    """The fields of the API that may forbid a token altogether."""
    given = {
        "allowed_token_ids": sampling.allowed_ids,
        "bad_words": sampling.forbidden,
        "min_tokens": sampling.min_tokens,
        "response_format": sampling.grammar,
    }
    return [name for name, value in given.items() if value]


def _each_row(logits: Tensor, rows: list[LogitRow], wanted: list[Wanted]) -> list[int]:
    """A token for every row; 0 for the rows of drafts that were drawn."""
    drawn = [one.drawn for one in wanted for _ in range(len(one.drafts) + 1)]
    greedy = [at for at, row in enumerate(rows) if row.state.greedy]
    random = [at for at, row in enumerate(rows) if not row.state.greedy and not drawn[at]]
    tokens = torch.zeros(len(rows), dtype=torch.int64, device=logits.device)
    if greedy:
        tokens[greedy] = _likeliest(logits if len(greedy) == len(rows) else logits[greedy])
    if random:
        mine = logits if len(random) == len(rows) else logits[random]
        tokens[random] = _drawn(mine, [rows[at] for at in random])
    return tokens.tolist()


def _likeliest(logits: Tensor) -> Tensor:
    tokens = logits.argmax(-1)
    check_finite(logits.gather(1, tokens[:, None]))
    return tokens


def _drawn(logits: Tensor, rows: list[LogitRow]) -> Tensor:
    numbers = torch.tensor(
        [row.state.uniform(len(row.drafts), Purpose.TOKEN) for row in rows], dtype=torch.float64
    )
    out = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    for at, found in candidates(logits, [row.state.sampling for row in rows]):
        check_finite(found.weights[:, 0])  # a softmax over one NaN or infinity is NaN everywhere
        entries = draw(found.weights, numbers.to(at.device)[at])
        if found.tokens is not None:
            entries = found.tokens.gather(1, entries[:, None]).squeeze(-1)
        out[at] = entries
    return out


def _matched(wanted: list[Wanted], tokens: list[int]) -> list[Picked]:
    """Keep drafts while each is what its row picked."""
    picked = []
    first = 0
    for one in wanted:
        if one.parents:
            rows = tokens[first : first + len(one.drafts) + 1]
            path = accepted_path(one.drafts, one.parents, rows)
            found = (rows[0], *(rows[draft + 1] for draft in path))
            picked.append(Picked(found, num_accepted=len(path), path=path))
            first += len(rows)
            continue
        accepted = 0
        while accepted < len(one.drafts) and tokens[first + accepted] == one.drafts[accepted]:
            accepted += 1
        mine = tuple(tokens[first : first + accepted + 1])
        picked.append(Picked(mine, num_accepted=accepted))
        first += len(one.drafts) + 1
    return picked


def _verified(logits: Tensor, wanted: list[Wanted], picked: list[Picked]) -> None:
    """Replace what was picked where drafts were drawn from a distribution."""
    claims: list[Claim] = []
    places: list[int] = []
    at: list[int] = []
    first = 0
    for place, one in enumerate(wanted):
        count = len(one.drafts)
        if one.drawn:
            state, given = one.state, one.draft_probabilities
            assert given is not None
            tests = tuple(state.uniform(ahead, Purpose.ACCEPT) for ahead in range(count))
            lasts = tuple(state.uniform(ahead, Purpose.TOKEN) for ahead in range(count + 1))
            claims.append(Claim(one.drafts, given, tests, lasts))
            places.append(place)
            at.extend(range(first, first + count + 1))
        first += count + 1
    if not claims:
        return
    samplings = [
        wanted[place].state.sampling
        for place in places
        for _ in range(len(wanted[place].drafts) + 1)
    ]
    target = probabilities(logits[at], samplings)
    check_finite(target.sum(-1))
    for place, (tokens, accepted) in zip(places, verify(target, claims), strict=True):
        picked[place] = Picked(tokens, num_accepted=accepted)


def _report(raw: Tensor, wanted: list[Wanted], picked: list[Picked]) -> None:
    """Add logprobs, from the rows of `raw` of the completions that ask for them."""
    at: list[int] = []
    chosen: list[int] = []
    tops: list[int] = []
    first = 0
    for one, found in zip(wanted, picked, strict=True):
        top = one.state.sampling.logprobs
        if top is None:
            continue
        at.extend(first + row for row in found.rows)
        chosen.extend(found.tokens)
        tops.extend([top] * len(found.tokens))
        first += len(one.drafts) + 1
    tokenizer = wanted[0].state.tokenizer
    entries = iter(token_logprobs(raw[at], chosen, tops, tokenizer))
    for place, one in enumerate(wanted):
        if one.state.sampling.logprobs is not None:
            found = picked[place]
            mine = tuple(next(entries) for _ in found.tokens)
            picked[place] = replace(found, logprobs=mine)


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
