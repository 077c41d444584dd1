"""Logits that are not computed before their loss: the same loss and gradients, and no matrix."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig

from ridgeline.kernels.fused_modules import fuse_modules
from ridgeline.kernels.logits_that_wait import WaitingLogits, logits_of

CLASSES = 1200


def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(8, CLASSES)


LOSSES = {
    "flattened": lambda y, t: functional.cross_entropy(y.view(-1, y.size(-1)), t.view(-1)),
    "shifted": lambda y, t: functional.cross_entropy(
        y[..., :-1, :].contiguous().float().view(-1, CLASSES), t[..., 1:].reshape(-1)
    ),
    "of a module": lambda y, t: nn.CrossEntropyLoss(ignore_index=3, label_smoothing=0.1)(
        y.flatten(0, 1), t.flatten()
    ),
    "of each row": lambda y, t: functional.cross_entropy(
        y.reshape(10, -1), t.reshape(10), reduction="none"
    ).square().mean(),
}  # fmt: skip
COMPUTED = {
    "with weights": lambda y, t: functional.cross_entropy(
        y.view(10, -1), t.view(10), weight=torch.ones(CLASSES)
    ),
    "scaled first": lambda y, t: functional.cross_entropy((y / 2).view(10, -1), t.view(10)),
    "classes in the middle": lambda y, t: functional.cross_entropy(y.transpose(1, 2), t),
    "classes cut": lambda y, t: functional.cross_entropy(y[..., :600].flatten(0, 1), t.view(10)),
    "no loss": lambda y, t: y.sigmoid().sum() + y.data.max(),
}


@pytest.mark.parametrize("name", [*LOSSES, *COMPUTED])
def test_losses_and_gradients_are_those_of_logits(name: str) -> None:
    last, losses = layer(), []
    targets = torch.arange(10).view(2, 5) * 50
    loss = (LOSSES | COMPUTED)[name]
    found = []
    for call in (last, logits_of(last, lambda: losses.append(name))):
        hidden = torch.linspace(-1, 1, 80).view(2, 5, 8).requires_grad_()
        value = loss(call(hidden), targets)
        gradients = torch.autograd.grad(value, (hidden, last.weight, last.bias))
        found.append([value, *gradients])
    assert losses == ([name] if name in LOSSES else [])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_logits_are_there_for_whoever_looks_at_them() -> None:
    last = layer()
    hidden = torch.randn(2, 5, 8, requires_grad=True)
    waiting = logits_of(last)(hidden)
    assert isinstance(waiting, WaitingLogits)
    assert waiting.shape == (2, 5, CLASSES)
    assert waiting.requires_grad
    assert waiting.dtype == torch.float32
    assert torch.equal(waiting.argmax(-1), last(hidden).argmax(-1))
    assert torch.equal(torch.cat([waiting, waiting]), last(hidden).repeat(2, 1, 1))
    with torch.no_grad():
        assert type(logits_of(last)(hidden)) is torch.Tensor


def test_autocast_casts_as_the_layer_would() -> None:
    last, targets = layer(), torch.arange(10)
    hidden = torch.randn(10, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        logits = logits_of(last)(hidden)
        plain = last(hidden)
    assert logits.dtype == plain.dtype == torch.bfloat16
    torch.testing.assert_close(
        functional.cross_entropy(logits.float(), targets),
        functional.cross_entropy(plain.float(), targets),
        rtol=2e-3,
        atol=2e-3,
    )


SMALL = {
    "vocab_size": CLASSES, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip


@pytest.mark.parametrize("config", [LlamaConfig, Gemma2Config], ids=lambda one: one.__name__)
def test_a_models_loss_is_fused_where_nothing_else_happens_to_its_logits(config: type) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config(**SMALL))
    tokens = torch.arange(22).view(2, 11)

    def run() -> list[torch.Tensor]:
        model.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        return [loss.detach(), *(one.grad.clone() for one in model.parameters())]

    before = run()
    found, undo = fuse_modules(model)
    assert found["losses"] == 1
    for one, other in zip(run(), before, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    fused = isinstance(model(input_ids=tokens, labels=tokens).logits, WaitingLogits)
    assert fused == (config is LlamaConfig), "Gemma 2 caps its logits, which computes them"
    undo()
    assert type(model(input_ids=tokens).logits) is torch.Tensor
