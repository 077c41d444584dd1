"""What an EAGLE head learns, in the loop of `train_heads.py`.

    loss = smooth L1(f^_(i+1), f_(i+1)) + 0.1 · cross entropy(p(f_(i+1)), q(f^_(i+1)))

Li et al., 2401.15077, section 4.2: f are the model's own states, with noise from U(-0.1, 0.1) where
the head reads them, so that it stands its own errors when it goes on from f^.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.serve.speculation.eagle import EagleHead
from ridgeline.serve.speculation.eagle_facts import EagleFacts

TOKEN_WEIGHT = 0.1
"""What the cross entropy weighs beside the distance of the states (section 4.2)."""
NOISE = 0.1


def new_eagle(model: Any, name: str) -> EagleHead:
    """A head of the sizes of the model's own layers; initial weights are drawn from torch's RNG."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    rope = getattr(config, "rope_parameters", None) or {}
    facts = EagleFacts(
        model=name,
        hidden=config.hidden_size,
        vocab=config.vocab_size,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        intermediate=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        rope_theta=rope.get("rope_theta", 10_000.0),
        norm_eps=getattr(config, "rms_norm_eps", 1e-6),
    )
    return EagleHead(facts).to(model.device)


def eagle_loss(
    model: Any,
    head: EagleHead,
    batch: Tensor,
    states: Tensor,
    logits: Callable[[Any, Tensor], Tensor],
) -> Tensor:
    """The loss over a batch [N, T] of tokens; noise on the states is drawn from torch's RNG."""
    noisy = states + NOISE * (2.0 * torch.rand_like(states) - 1.0)
    ahead = head(_embedded(model, batch), noisy[:, :-1])
    wanted = states[:, 1:]
    with torch.no_grad():
        own = logits(model, wanted).softmax(-1)
    words = -(own * logits(model, ahead).log_softmax(-1)).sum(-1).mean()
    return nn.functional.smooth_l1_loss(ahead, wanted) + TOKEN_WEIGHT * words


def eagle_agreement(
    model: Any,
    head: EagleHead,
    batch: Tensor,
    states: Tensor,
    logits: Callable[[Any, Tensor], Tensor],
) -> float:
    """How often its first guess is what the model itself would say, given a text [N, T]."""
    guesses = logits(model, head(_embedded(model, batch), states[:, :-1])).argmax(-1)
    return float((guesses == logits(model, states[:, 1:]).argmax(-1)).float().mean())


def _embedded(model: Any, batch: Tensor) -> Tensor:
    with torch.no_grad():
        return model.get_input_embeddings()(batch[:, 1:].to(model.device)).float()  # type: ignore[no-any-return]
