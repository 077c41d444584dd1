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
DEPTH = 4
"""Places of a chain at which guesses are judged."""


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
    count: int,
) -> list[Tensor]:
    """How often its guesses are what the model itself would say, of a text [N, T].

    For each place of a chain that the head goes on from by itself, taking the guesses before it for
    the text's tokens: the share [count] of the positions at which its first, second, … guess is the
    model's argmax.
    """
    own = logits(model, states).argmax(-1)
    tokens = batch.shape[1]
    embedded = _embedded(model, batch)  # of the second token on
    fused = head.fuse(embedded, head.features(states[:, :-1]))
    places = torch.arange(tokens - 1, device=fused.device)
    keys, values = head.keys_values(fused, places.expand(fused.shape[:2]))
    chain: list[tuple[Tensor, Tensor]] = []
    shares: list[Tensor] = []
    for depth in range(1, DEPTH + 1):
        at = places[: fused.shape[1]] + depth - 1
        if depth > 1:
            chain.append(head.keys_values(fused, at.expand(fused.shape[:2])))
        queries = head.queries(fused, at.expand(fused.shape[:2]))
        features = head.finish(fused, _attended(queries, keys, values, chain))
        guesses = logits(model, features).topk(count).indices
        shares.append((guesses == own[:, depth:, None]).float().mean((0, 1)))
        left = tokens - 1 - depth
        if left < 1:
            break
        fused = head.fuse(embedded[:, depth:], features[:, :left])
        chain = [(key[:, :left], value[:, :left]) for key, value in chain]
    return shares


def _attended(
    queries: Tensor, keys: Tensor, values: Tensor, chain: list[tuple[Tensor, Tensor]]
) -> Tensor:
    """Each row sees the states of the text up to its own, and its own chain of guesses.

    Args:
        queries: [N, M, heads, head_dim].
        keys: [N, L, kv_heads, head_dim], of which row m sees those up to m.
        values: Likewise.
        chain: Keys and values [N, M, kv_heads, head_dim] of each guess before.
    """
    group = queries.shape[2] // keys.shape[2]
    rows = queries.transpose(1, 2)  # [N, heads, M, head_dim]
    keys, values = (one.repeat_interleave(group, 2).transpose(1, 2) for one in (keys, values))
    own = [tuple(one.repeat_interleave(group, 2).transpose(1, 2) for one in pair) for pair in chain]
    later = torch.ones(rows.shape[2], keys.shape[2], dtype=torch.bool, device=rows.device).triu(1)
    scores = (rows @ keys.transpose(2, 3)).masked_fill(later, float("-inf"))
    beside = [(rows * key).sum(-1, keepdim=True) for key, _ in own]
    chances = (torch.cat((scores, *beside), dim=-1) / rows.shape[-1] ** 0.5).softmax(-1)
    found = chances[..., : keys.shape[2]] @ values
    for number, (_, value) in enumerate(own, start=keys.shape[2]):
        found = found + chances[..., number, None] * value
    return found.transpose(1, 2).flatten(2)


def _embedded(model: Any, batch: Tensor) -> Tensor:
    with torch.no_grad():
        return model.get_input_embeddings()(batch[:, 1:].to(model.device)).float()  # type: ignore[no-any-return]
