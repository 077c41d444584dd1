"""Masks of sixteen bits: the right share, no pattern, and attention that is otherwise torch's."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.kernels import sixteen_bit_dropout as ours

SIGMAS = 5.0
"""Of a binomial's deviation; one run in a million lies further off."""


@pytest.mark.parametrize("p", [0.001, 0.1, 0.2, 0.5, 0.9])
def test_the_right_share_is_dropped_in_every_place_of_a_word(p):
    torch.manual_seed(0)
    count = 400_000
    dropped = ours.sixteen_bit_mask(torch.ones(count), p) == 0
    for place in range(4):
        share = dropped[place::4].float().mean().item()
        assert abs(share - p) < SIGMAS * math.sqrt(p * (1 - p) / (count / 4)) + 2**-17


def test_neighbours_are_dropped_independently():
    torch.manual_seed(0)
    p, count = 0.3, 400_000
    dropped = (ours.sixteen_bit_mask(torch.ones(count), p) == 0).double() - p
    for lag in (1, 2, 3, 4, 5, 8, 64):
        together = (dropped[lag:] * dropped[:-lag]).mean().item()
        assert abs(together) < SIGMAS * p * (1 - p) / math.sqrt(count)


@settings(max_examples=50, deadline=None)
@given(p=st.floats(2**-16, 1 - 2**-15), shape=st.lists(st.integers(0, 7), max_size=4))
def test_the_expectation_is_exact_for_what_is_dropped(p, shape):
    mask = ours.sixteen_bit_mask(torch.ones(shape), p)
    assert list(mask.shape) == shape
    rounded = round(p * 65_536) / 65_536
    assert set(mask.flatten().tolist()) <= {0.0, torch.tensor(1 / (1 - rounded)).item()}


def test_the_gradient_passes_where_the_value_does():
    values = torch.randn(50, 30, requires_grad=True)
    result = ours.sixteen_bit_dropout(values, 0.25)
    result.sum().backward()
    assert values.grad is not None
    assert torch.equal(result.detach(), values.detach() * values.grad)
    assert 0.15 < (values.grad == 0).float().mean() < 0.35


def test_in_place_is_in_place():
    values = torch.ones(1000)
    assert ours.sixteen_bit_dropout(values, 0.5, inplace=True) is values
    assert set(values.tolist()) == {0.0, 2.0}


@pytest.mark.parametrize(
    ("values", "p", "training"),
    [
        (torch.ones(100), 0.5, False),
        (torch.ones(100), 0.0, True),
        (torch.ones(100), 1.0, True),
        (torch.ones(100, dtype=torch.float64), 0.5, True),
        (torch.eye(10).to_sparse(), 0.5, True),
        (torch.ones(100, device="meta"), 0.5, True),
    ],
)
def test_the_rest_is_left_to_torch(values, p, training):
    assert not ours.takes_sixteen_bits(values, p, training)
    if values.layout is torch.strided:
        torch.manual_seed(1)
        wanted = ours.torch_dropout(values, p, training)
        torch.manual_seed(1)
        got = ours.sixteen_bit_dropout(values, p, training)
        assert got.is_meta or torch.equal(got, wanted)


MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "of truth": {"attn_mask": torch.rand(2, 1, 9, 9) > 0.3},
    "a row of nothing": {"attn_mask": (torch.arange(9) > 0)[:, None].expand(9, 9)},
    "added": {"attn_mask": torch.randn(9, 9)},
    "scaled": {"scale": 0.3},
}


@pytest.mark.parametrize("kind", MASKS)
def test_attention_that_drops_nothing_is_torchs(kind, monkeypatch):
    monkeypatch.setattr(ours, "sixteen_bit_mask", lambda like, p: torch.ones_like(like))
    query, key, value = (torch.randn(2, 3, 9, 8, requires_grad=True) for _ in range(3))
    got = ours.sixteen_bit_attention(query, key, value, dropout_p=0.1, **MASKS[kind])
    wanted = ours.torch_attention(query, key, value, **MASKS[kind])
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
    for a, b in zip(
        torch.autograd.grad(got.sum(), [query, key, value]),
        torch.autograd.grad(wanted.sum(), [query, key, value]),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_attention_drops_weights_and_keeps_their_mean():
    torch.manual_seed(0)
    query, key = torch.randn(1, 1, 16, 8), torch.randn(1, 1, 16, 8)
    value = torch.eye(16)[None, None]
    weights = ours.torch_attention(query, key, value)
    drawn = torch.stack(
        [ours.sixteen_bit_attention(query, key, value, None, 0.4) for _ in range(3000)]
    )
    assert 0.38 < (drawn == 0).float().mean() < 0.42
    torch.testing.assert_close(drawn.mean(0), weights, rtol=0.2, atol=0.01)


def test_heads_in_groups_are_left_to_torch():
    query, key = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
    assert (
        ours.sixteen_bit_attention(query, key, key, None, 0.1, enable_gqa=True).shape == query.shape
    )
