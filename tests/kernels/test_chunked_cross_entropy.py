"""The loss in chunks is torch's loss, and so is its gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from ridgeline.kernels.chunked_cross_entropy import (
    ChunkedCrossEntropy,
    chunked_cross_entropy,
    full_cross_entropy,
    takes_chunks,
)


@settings(max_examples=8, deadline=None)
@given(
    rows=st.integers(1, 60), classes=st.sampled_from([1024, 1500, 33_000]), seed=st.integers(0),
    reduction=st.sampled_from(["mean", "sum", "none"]), scale=st.sampled_from([0.1, 5.0, 300.0]),
    ignored=st.sampled_from([0.0, 0.3, 1.0]),
)  # fmt: skip
def test_loss_and_gradient_are_those_of_torch_in_double_precision(
    rows, classes, seed, reduction, scale, ignored
):
    draw = torch.Generator().manual_seed(seed % 2**40)
    logits = (scale * torch.randn(rows, classes, generator=draw)).requires_grad_()
    target = torch.randint(classes, (rows,), generator=draw)
    target[torch.rand(rows, generator=draw) < ignored] = -100
    weights = torch.rand(rows, generator=draw) if reduction == "none" else torch.tensor(1.0)
    exact = logits.detach().double().requires_grad_()
    assert takes_chunks(logits, target, reduction=reduction)
    wanted = full_cross_entropy(exact, target, reduction=reduction)
    (wanted * weights.double()).sum().backward()
    got = chunked_cross_entropy(logits, target, reduction=reduction)
    (got * weights).sum().backward()
    torch.testing.assert_close(got.double(), wanted, rtol=2e-5, atol=1e-4, equal_nan=True)
    assert exact.grad is not None
    assert logits.grad is not None
    torch.testing.assert_close(
        logits.grad.double(), exact.grad, rtol=1e-4, atol=1e-6, equal_nan=True
    )


def test_chunks_of_one_row_and_a_rest_are_the_same(monkeypatch):
    logits, target = torch.randn(7, 2000, requires_grad=True), torch.arange(7)
    whole = chunked_cross_entropy(logits, target)
    for elements in (1, 2000, 6001):
        monkeypatch.setattr(ChunkedCrossEntropy, "elements", elements)
        assert chunked_cross_entropy(logits, target).item() == pytest.approx(whole.item(), rel=1e-6)


def test_a_graph_that_is_kept_can_be_gone_through_again():
    logits, target = torch.randn(9, 1024, requires_grad=True), torch.arange(9)
    loss = chunked_cross_entropy(logits, target)
    (first,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (second,) = torch.autograd.grad(loss, logits)
    assert torch.equal(first, second)


ELSEWHERE = {
    "few classes": lambda x, y: ((x[:, :1000], y), {}),
    "weights": lambda x, y: ((x, y), {"weight": torch.rand(1024)}),
    "smoothing": lambda x, y: ((x, y), {"label_smoothing": 0.1}),
    "probabilities": lambda x, y: ((x, x.detach().softmax(1)), {}),
    "bfloat16": lambda x, y: ((x.bfloat16(), y), {}),
    "pixels": lambda x, y: ((x[:, :, None], y[:, None]), {}),
    "one sample": lambda x, y: ((x[0], y[0]), {}),
    "of old": lambda x, y: ((x, y), {"size_average": False}),
    "no gradient": lambda x, y: ((x.detach(), y), {}),
}


@pytest.mark.filterwarnings("ignore:size_average")
@pytest.mark.parametrize("kind", ELSEWHERE)
def test_what_it_is_not_for_is_left_to_torch(kind):
    args, kwargs = ELSEWHERE[kind](torch.randn(8, 1024, requires_grad=True), torch.arange(8))
    assert not takes_chunks(*args, **kwargs)
    assert torch.equal(chunked_cross_entropy(*args, **kwargs), full_cross_entropy(*args, **kwargs))


def test_a_class_that_is_not_there_is_an_error_as_it_is_of_torch():
    logits = torch.randn(2, 1024, requires_grad=True)
    for target in (torch.tensor([0, 1024]), torch.tensor([-1, 0])):
        for function in (functional.cross_entropy, chunked_cross_entropy):
            with pytest.raises((IndexError, RuntimeError)):
                function(logits, target)


def test_a_changed_matrix_of_logits_is_noticed():
    logits, target = torch.randn(2, 1024, requires_grad=True), torch.arange(2)
    scores = logits * 2
    loss = chunked_cross_entropy(scores, target)
    scores.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
