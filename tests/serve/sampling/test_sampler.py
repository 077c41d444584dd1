"""Tokens picked from a batch of answers with parameters of their own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ridgeline.serve.messages import Sampling, Submit
from ridgeline.serve.sampling.distribution import FEW, SPAN, LogitRow, draw, edit, probabilities
from ridgeline.serve.sampling.logprobs import PromptLogprobs, token_logprobs
from ridgeline.serve.sampling.sampler import Wanted, pick
from ridgeline.serve.sampling.state import Purpose, SamplingState, key_of, take, uniform

EOS = 1


def state_of(
    prompt: tuple[int, ...] = (3, 4),
    *,
    vocab: int = 40,
    name: str = "a",
    index: int = 0,
    **asked: Any,
) -> SamplingState:
    asked = {"max_tokens": 1000, **asked}
    submit = Submit(id=name, prompt=prompt, sampling=Sampling(**asked), n=index + 1)
    return SamplingState(submit, index, vocab=vocab, eos_ids=(EOS,), tokenizer=None)


def logits_of(rows: int, vocab: int = 40, seed: int = 0, spread: float = 2.0) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def slow(logits: Tensor, sampling: Sampling) -> Tensor:
    """The same distribution in float64, by sorting, one rule after the other."""
    shares = (logits.double() / sampling.temperature).softmax(-1)
    shares[shares < sampling.min_p * shares.max() * (1 - 1e-6)] = 0.0
    order = shares.argsort(descending=True, stable=True)
    if sampling.top_k:
        shares[order[sampling.top_k :]] = 0.0
    shares /= shares.sum()
    before = shares[order].cumsum(0) - shares[order]
    cut = before >= sampling.top_p
    cut[0] = False
    shares[order[cut]] = 0.0
    return shares / shares.sum()


parameters = st.builds(
    Sampling,
    temperature=st.floats(0.3, 3.0),
    top_k=st.sampled_from([0, 1, 2, 7, 50, FEW, 5 * FEW, 10_000]),
    top_p=st.sampled_from([0.01, 0.3, 0.77, 0.95, 0.9999, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(parameters, min_size=1, max_size=6),
    st.sampled_from([5, FEW, 4000]),
    st.sampled_from([0.01, 1.0, 6.0]),
    st.integers(0, 10**6),
)
def test_the_distribution_is_that_of_the_rules_one_by_one(
    samplings: list[Sampling], vocab: int, spread: float, seed: int
) -> None:
    logits = logits_of(len(samplings), vocab, seed, spread)
    found = probabilities(logits.clone(), samplings)
    for row, (mine, sampling) in enumerate(zip(found, samplings, strict=True)):
        wanted = slow(logits[row], sampling)
        # Where the sum meets top_p within rounding, one token may be in or out.
        edge = float(wanted[wanted > 0].min())
        off = (mine.double() - wanted).abs().sum()
        assert off < max(1e-4, 3 * edge)
        assert mine.sum() == pytest.approx(1.0, abs=1e-4)


def test_greedy_answers_get_the_argmax() -> None:
    logits = logits_of(5)
    wanted = [Wanted(state_of(temperature=0.0)) for _ in range(5)]
    expected = logits.argmax(-1).tolist()
    assert [one.tokens[0] for one in pick(logits, wanted)] == expected


def test_an_answer_does_not_depend_on_its_batch() -> None:
    logits = logits_of(6, 700)
    asked: list[dict[str, Any]] = [
        {"seed": 5},
        {"seed": 5, "top_k": 3},
        {"temperature": 0.0},
        {"seed": 8, "top_p": 0.8, "repetition_penalty": 1.3},
        {"seed": 9, "min_p": 0.1, "logprobs": 2},
        {"seed": 9, "logit_bias": {7: 5.0}},
    ]
    states = [state_of(vocab=700, **one) for one in asked]
    together = pick(logits.clone(), [Wanted(one) for one in states])
    for row, state in enumerate(states):
        assert pick(logits[row : row + 1].clone(), [Wanted(state)])[0] == together[row]


def test_a_seed_gives_the_same_answer_again_and_answers_differ() -> None:
    def noted(state: SamplingState) -> list[int]:
        found = []
        for step in range(20):
            picked = pick(logits_of(1, 1000, step), [Wanted(state)])[0]
            take(state, picked)
            found.extend(picked.tokens)
        return found

    first = noted(state_of(vocab=1000, seed=3))
    assert noted(state_of(vocab=1000, seed=3, name="b")) == first
    assert noted(state_of(vocab=1000, seed=2, index=1)) == first  # answer 1 of seed 2
    assert noted(state_of(vocab=1000, seed=4)) != first
    unseeded = noted(state_of(vocab=1000))
    assert noted(state_of(vocab=1000)) == unseeded
    assert noted(state_of(vocab=1000, name="b")) != unseeded


def test_draws_follow_their_weights() -> None:
    vocab = SPAN + 100
    weights = torch.rand(vocab, generator=torch.Generator().manual_seed(1)) ** 8
    weights[::3] = 0.0
    numbers = torch.tensor([uniform(key_of(1, 0, ""), at, Purpose.TOKEN) for at in range(20_000)])
    drawn = draw(weights.expand(20_000, -1), numbers)
    counts = drawn.bincount(minlength=vocab)
    assert not counts[::3].any()
    wanted = weights / weights.sum() * 20_000
    likely = wanted > 5
    statistic = (((counts - wanted) ** 2) / wanted)[likely].sum()
    freedom = int(likely.sum())
    assert statistic < freedom + 5 * math.sqrt(2 * freedom)


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 1200), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_no_draw_has_weight_zero(number: float, vocab: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(1, vocab, generator=generator)
    weights[torch.rand(1, vocab, generator=generator) < 0.9] = 0.0
    weights[0, seed % vocab] = 1e-30
    drawn = int(draw(weights, torch.tensor([number], dtype=torch.float64)))
    assert weights[0, drawn] > 0


def test_numbers_of_positions_and_purposes_are_spread_evenly() -> None:
    key = key_of(None, 0, "engine/request")
    numbers = torch.tensor([uniform(key, at, purpose) for at in range(5000) for purpose in Purpose])
    assert len(numbers.unique()) > 14_000
    assert numbers.mean() == pytest.approx(0.5, abs=0.01)
    assert numbers.histc(10, 0, 1).div(1500).sub(1).abs().max() < 0.15


def test_penalties_follow_their_formulas_and_see_accepted_drafts() -> None:
    asked = {"repetition_penalty": 1.5, "frequency_penalty": 0.4, "presence_penalty": 0.3}
    state = state_of(prompt=(3, 4, 4), **asked)
    for token in (5, 5, 3):
        state.append(token)
    logits = logits_of(1).expand(2, -1).clone()
    raw = logits[0].clone()
    edit(logits, [LogitRow(state), LogitRow(state, (5, 9))])
    for row, counts in ((0, {3: 1, 4: 0, 5: 2}), (1, {3: 1, 4: 0, 5: 3, 9: 1})):
        for token in range(40):
            value = float(raw[token])
            if token in counts:
                value = value / 1.5 if value > 0 else value * 1.5
                value -= 0.4 * counts[token] + 0.3 * (counts[token] > 0)
            assert float(logits[row, token]) == pytest.approx(value, abs=1e-5)


def test_a_long_history_grows() -> None:
    state = state_of(vocab=500, frequency_penalty=1.0)
    for token in range(400):
        state.append(token)
    logits = torch.zeros(1, 500)
    edit(logits, [LogitRow(state)])
    assert logits[0, :400].tolist() == [-1.0] * 400
    assert not logits[0, 400:].any()


def test_ending_tokens_wait_for_min_tokens() -> None:
    state = state_of(temperature=0.0, min_tokens=2, stop_ids=(7,), ignore_eos=True)
    logits = torch.zeros(1, 40)
    logits[0, [EOS, 7, 8]] = torch.tensor([9.0, 8.0, 7.0])
    found = []
    for _ in range(3):
        found.append(pick(logits.clone(), [Wanted(state)])[0].tokens[0])
        state.append(found[-1])
    assert found == [8, 8, EOS]
    drafted = pick(
        logits.expand(3, -1).clone(),
        [Wanted(state_of(temperature=0.0, min_tokens=2), drafts=(7, 7))],
    )
    assert drafted[0].tokens == (7, 7, EOS)


def test_a_bias_moves_logits() -> None:
    logits = logits_of(1)
    state = state_of(temperature=0.0, logit_bias={11: 100.0, 12: -100.0})
    assert pick(logits, [Wanted(state)])[0].tokens == (11,)


def test_logprobs_are_of_the_raw_logits_whatever_is_asked() -> None:
    logits = logits_of(3)
    raw = logits.log_softmax(-1)
    wanted = [
        Wanted(state_of(temperature=0.0)),
        Wanted(state_of(seed=1, temperature=0.5, top_k=5, logprobs=3, logit_bias={11: 100.0})),
        Wanted(state_of(temperature=0.0, logprobs=0)),
    ]
    picked = pick(logits, wanted)
    assert picked[0].logprobs == ()
    (middle,) = picked[1].logprobs
    assert middle.chosen is not None
    assert middle.chosen.token == 11
    assert middle.chosen.logprob == pytest.approx(float(raw[1, 11]), abs=1e-5)
    assert middle.chosen.rank == int((raw[1] > raw[1, 11]).sum()) + 1
    assert [one.token for one in middle.top] == raw[1].topk(3).indices.tolist()
    assert [one.rank for one in middle.top] == [1, 2, 3]
    assert picked[2].logprobs[0].top == ()


def test_prompt_logprobs_of_chunks_are_those_of_the_whole_prompt() -> None:
    prompt = (5, 9, 2, 7, 7)
    logits = logits_of(5)
    whole = PromptLogprobs(prompt, 2, None)
    whole.add(logits, 0)
    pieces = PromptLogprobs(prompt, 2, None)
    pieces.add(logits[:2], 0)
    pieces.add(logits[1:4], 1)  # the second token again, as after a preemption
    pieces.add(logits[4:], 4)
    assert pieces.take() == whole.take()
    first, second, *_ = whole.take()
    assert first.chosen is None
    assert second == token_logprobs(logits[:1], [9], [2], None)[0]


def test_certain_drafts_change_no_token_of_a_seed() -> None:
    logits = logits_of(4, seed=3, spread=1.0)
    for seed in range(30):
        plain = state_of(seed=seed)
        tokens = []
        for row in range(4):
            tokens.append(pick(logits[row : row + 1].clone(), [Wanted(plain)])[0].tokens[0])
            plain.append(tokens[-1])
        drafts = (tokens[0], tokens[1], (tokens[2] + seed % 2) % 40)
        (picked,) = pick(logits.clone(), [Wanted(state_of(seed=seed), drafts)])
        assert picked.tokens == tuple(tokens[: len(picked.tokens)])
        assert picked.num_accepted == (3 if seed % 2 == 0 else 2)


def test_mixed_batches_keep_their_rows_apart() -> None:
    logits = logits_of(7)
    best = logits.argmax(-1).tolist()
    wanted = [
        Wanted(state_of(temperature=0.0), (best[0], 39)),
        Wanted(state_of(seed=1, top_k=1), (best[3],), torch.eye(40)[[best[3]]]),
        Wanted(state_of(temperature=0.0, logprobs=1)),
        Wanted(state_of(seed=2, top_k=1)),
    ]
    picked = pick(logits, wanted)
    assert [one.tokens for one in picked] == [
        (best[0], best[1]),
        (best[3], best[4]),
        (best[5],),
        (best[6],),
    ]
    assert [one.num_accepted for one in picked] == [1, 1, 0, 0]
