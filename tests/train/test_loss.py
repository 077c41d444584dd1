"""The token loss against torch's cross entropy, and what it may not do with memory."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy

from ridgeline.train import loss as module
from ridgeline.train.batch import IGNORED
from ridgeline.train.loss import token_loss


def plain(logits: Tensor, labels: Tensor, z_loss: float) -> Tensor:
    """The formula, spelled out."""
    flat, targets = logits.float().flatten(0, -2), labels.flatten()
    loss = cross_entropy(flat, targets, ignore_index=IGNORED, reduction="sum")
    log_z = torch.logsumexp(flat, dim=-1)
    return loss + z_loss * (log_z.square() * (targets != IGNORED)).sum()


@settings(deadline=None, max_examples=60)
@given(
    batch=st.integers(1, 3),
    seq=st.integers(1, 9),
    vocab=st.integers(1, 40),
    z_loss=st.sampled_from([0.0, 1e-4, 0.3]),
    scale=st.sampled_from([0.1, 1.0, 200.0]),
    seed=st.integers(0, 2**16),
)
def test_loss_and_gradient_are_those_of_the_formula(
    batch: int, seq: int, vocab: int, z_loss: float, scale: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, seq, vocab, generator=generator) * scale
    labels = torch.randint(vocab, (batch, seq), generator=generator)
    labels[torch.rand(batch, seq, generator=generator) < 0.3] = IGNORED
    mine, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    one, other = token_loss(mine, labels, z_loss), plain(theirs, labels, z_loss)
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)
    (one / 7).backward()
    (other / 7).backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=2e-6)


def test_chunks_add_up_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(5, 7, 11)
    labels = torch.randint(11, (5, 7))
    whole = token_loss(logits, labels, 1e-2)
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", {"cpu": 24, "cuda": 24})
    torch.testing.assert_close(token_loss(logits, labels, 1e-2), whole)


def test_sixteen_bit_logits_are_summed_in_fp32_and_get_sixteen_bit_gradients() -> None:
    logits = torch.randn(4, 64, 500).bfloat16().requires_grad_()
    labels = torch.randint(500, (4, 64))
    loss = token_loss(logits, labels)
    torch.testing.assert_close(loss, plain(logits.detach(), labels, 0.0), rtol=1e-6, atol=0.0)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad.dtype == torch.bfloat16


def test_the_logits_are_left_as_they_were() -> None:
    logits = torch.randn(2, 3, 8, requires_grad=True)
    before = logits.detach().clone()
    token_loss(logits, torch.zeros(2, 3, dtype=torch.int64)).backward()
    assert torch.equal(logits.detach(), before)


def test_no_target_at_all_is_a_loss_of_zero_with_zero_gradient() -> None:
    logits = torch.randn(2, 3, 8, requires_grad=True)
    loss = token_loss(logits, torch.full((2, 3), IGNORED), 1e-3)
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_validation_is_cross_entropy_alone() -> None:
    logits, labels = torch.randn(2, 3, 8), torch.randint(8, (2, 3))
    with torch.no_grad():
        torch.testing.assert_close(token_loss(logits, labels, 0.5), plain(logits, labels, 0.0))
