"""Drafts change the speed of an answer, never its distribution."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ridgeline.serve.messages import Sampling, Submit
from ridgeline.serve.sampling.distribution import LogitRow, draw, edit, probabilities
from ridgeline.serve.sampling.sampler import Claim, Wanted, pick, verify
from ridgeline.serve.sampling.state import Purpose, SamplingState, key_of, uniform
from ridgeline.serve.speculation.drafter import draw_drafts

VOCAB = 5
DRAWS = 12_000
generator = torch.Generator().manual_seed(7)
TARGET = torch.randn(VOCAB + 1, VOCAB, generator=generator) * 1.5
"""Logits after each token, and of the first one in the last row."""
DRAFT = TARGET + torch.randn(VOCAB + 1, VOCAB, generator=generator)

Make = Callable[[list[SamplingState]], list[Wanted]]


def certain(states: list[SamplingState]) -> list[Wanted]:
    """As n-gram look-up: always the same guesses, with no distribution."""
    return [Wanted(state, (3, 1)) for state in states]


def from_a_model(states: list[SamplingState]) -> list[Wanted]:
    """Each draft from a distribution that knows the draft before it."""
    return drafted(states, lambda first: DRAFT[first])


def from_heads(states: list[SamplingState]) -> list[Wanted]:
    """The second draft does not know the first."""
    return drafted(states, lambda first: DRAFT[[0] * len(first)])


def from_a_tree(states: list[SamplingState]) -> list[Wanted]:
    """Candidates that are always the same: two for the first token, more behind them."""
    return [Wanted(state, (3, 1, 0, 2, 3), parents=(-1, -1, 0, 0, 1)) for state in states]


def drafted(states: list[SamplingState], second: Callable[[list[int]], Tensor]) -> list[Wanted]:
    count = len(states)
    first, given = draw_drafts(DRAFT[[-1] * count], states, [()] * count)
    after, more = draw_drafts(second(first), states, [(token,) for token in first])
    return [
        Wanted(state, (one, other), torch.stack([p, q]))
        for state, one, other, p, q in zip(states, first, after, given, more, strict=True)
        if p is not None and q is not None
    ]


def two_tokens(sampling: Sampling, count: int, make: Make) -> Counter[tuple[int, int]]:
    """The first two tokens of many answers, decoded with drafts."""
    asked = [
        Submit(id="a", prompt=(0,), sampling=msgspec.structs.replace(sampling, seed=seed))
        for seed in range(count)
    ]
    states = [SamplingState(one, 0, vocab=VOCAB, eos_ids=(), tokenizer=None) for one in asked]
    wanted = make(states)
    assert len(wanted) == count
    rows = [row for one in wanted for row in (-1, *one.drafts)]
    answers = [one.tokens[:2] for one in pick(TARGET[rows], wanted)]
    short = [at for at, tokens in enumerate(answers) if len(tokens) == 1]
    for at in short:
        states[at].append(answers[at][0])
    rest = pick(TARGET[[answers[at][0] for at in short]], [Wanted(states[at]) for at in short])
    for at, more in zip(short, rest, strict=True):
        answers[at] += more.tokens
    return Counter((tokens[0], tokens[1]) for tokens in answers)


def joint(sampling: Sampling) -> Tensor:
    """[V, V] probability of two consecutive tokens."""
    asked = Submit(id="a", prompt=(0,), sampling=sampling)
    found = torch.zeros(VOCAB, VOCAB)
    state = SamplingState(asked, 0, vocab=VOCAB, eos_ids=(), tokenizer=None)

    def processed(logits: Tensor, drafts: tuple[int, ...]) -> Tensor:
        logits = logits[None].clone()
        edit(logits, [LogitRow(state, drafts)])
        return probabilities(logits, [sampling])[0]

    first = processed(TARGET[-1], ())
    for token in range(VOCAB):
        found[token] = first[token] * processed(TARGET[token], (token,))
    return found


SAMPLINGS = {
    "plain": Sampling(),
    "cold": Sampling(temperature=0.7, top_k=4),
    "nucleus": Sampling(top_p=0.8),
    "penalised": Sampling(frequency_penalty=1.5, presence_penalty=0.5, repetition_penalty=1.2),
    "biased": Sampling(logit_bias={3: -3.0}, min_p=0.05),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", [certain, from_a_model, from_heads, from_a_tree])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_two_tokens_come_with_the_probability_they_have_without_drafts(
    make: Make, name: str
) -> None:
    sampling = SAMPLINGS[name]
    wanted = joint(sampling)
    count = DRAWS if name == "plain" else DRAWS // 4
    drawn = two_tokens(sampling, count, make)
    statistic, freedom = 0.0, -1
    for first in range(VOCAB):
        for second in range(VOCAB):
            expected = count * float(wanted[first, second])
            if expected == 0.0:
                assert drawn[first, second] == 0
            elif expected >= 5.0:
                statistic += (drawn[first, second] - expected) ** 2 / expected
                freedom += 1
    # χ² beyond this has a chance below 1e-4 (Wilson-Hilferty); seeds are fixed.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.72 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit


def test_a_draft_is_accepted_as_often_as_the_distributions_overlap() -> None:
    target = torch.tensor([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]])
    given = torch.tensor([[0.2, 0.2, 0.6]])
    key, count = key_of(1, 0, ""), 6000

    def numbers(purpose: Purpose) -> list[float]:
        return [uniform(key, at, purpose) for at in range(count)]

    drafts = draw(given.expand(count, -1), torch.tensor(numbers(Purpose.DRAFT))).tolist()
    tests, lasts = numbers(Purpose.ACCEPT), numbers(Purpose.TOKEN)
    claims = [
        Claim((draft,), given, (test,), (last, last))
        for draft, test, last in zip(drafts, tests, lasts, strict=True)
    ]
    accepted = sum(kept for _, kept in verify(target.repeat(count, 1), claims))
    assert accepted / count == pytest.approx(0.2 + 0.2 + 0.2, abs=0.02)  # Σ min(p, q)


def test_a_tree_gives_the_tokens_of_the_same_seeds_and_accepts_what_its_children_hold() -> None:
    sampling = Sampling(temperature=0.9, logprobs=1)
    asked = [
        Submit(id="a", prompt=(0,), sampling=msgspec.structs.replace(sampling, seed=seed))
        for seed in range(800)
    ]
    states = [SamplingState(one, 0, vocab=VOCAB, eos_ids=(), tokenizer=None) for one in asked]
    trees = pick(TARGET[[-1, 3, 1, 0, 2, 3] * len(states)], from_a_tree(states))
    alone = pick(TARGET[[-1] * len(states)], [Wanted(state) for state in states])
    assert [one.tokens[0] for one in trees] == [one.tokens[0] for one in alone]
    assert [one.logprobs[0] for one in trees] == [one.logprobs[0] for one in alone]
    for one in trees:
        rows = [-1, 3, 1, 0, 2, 3]
        said = TARGET[[rows[row] for row in one.rows]].log_softmax(-1)
        found = [said[at, token].item() for at, token in enumerate(one.tokens)]
        assert [entry.chosen.logprob for entry in one.logprobs] == pytest.approx(found, abs=1e-5)
    held = (TARGET[-1] / 0.9).softmax(-1)[[3, 1]].sum().item()
    accepted = sum(one.num_accepted > 0 for one in trees) / len(trees)
    assert accepted == pytest.approx(held, abs=0.05)


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 5))
@settings(max_examples=50, deadline=None)
def test_a_batch_of_claims_is_the_claims_one_by_one(seed: int, count: int, drafts: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    claims, targets = [], []
    for place in range(count):
        size = 1 + (drafts + place) % 4
        targets.append(torch.rand(size + 1, 9, generator=chance).softmax(-1))
        given = (torch.rand(size, 9, generator=chance) * 4).softmax(-1)
        numbers = torch.rand(2 * size + 1, generator=chance).tolist()
        guesses = draw(given, torch.rand(size, generator=chance)).tolist()
        claims.append(Claim(tuple(guesses), given, tuple(numbers[:size]), tuple(numbers[size:])))
    together = verify(torch.cat(targets), claims)
    alone = [verify(one, [claim])[0] for one, claim in zip(targets, claims, strict=True)]
    assert together == alone


def test_equal_distributions_accept_everything() -> None:
    given = torch.rand(3, 20).softmax(-1)
    target = torch.cat((given, given[:1]))
    claim = Claim((4, 7, 2), given, (0.999999, 0.5, 0.0), (0.1, 0.2, 0.3, 0.4))
    ((tokens, accepted),) = verify(target, [claim])
    assert accepted == 3
    assert tokens[:3] == (4, 7, 2)


def test_greedy_drafts_with_a_distribution_are_compared_with_the_argmax() -> None:
    sampling = Sampling(temperature=0.0)
    best = int(TARGET[-1].argmax())
    after = int(TARGET[best].argmax())
    asked = Submit(id="a", prompt=(0,), sampling=sampling)
    state = SamplingState(asked, 0, vocab=VOCAB, eos_ids=(), tokenizer=None)
    wanted = Wanted(state, (best,), torch.full((1, VOCAB), 1 / VOCAB))
    (picked,) = pick(TARGET[[-1, best]].clone(), [wanted])
    assert picked.tokens == (best, after)
