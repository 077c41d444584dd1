"""What one must know of an EAGLE head before its weights are read."""

from __future__ import annotations

import msgspec


class EagleFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `eagle.json` says of a head."""

    model: str
    """The model that it was trained for."""
    hidden: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    draft_vocab: int | None = None
    """The number of tokens that an EAGLE-3 head can guess; None: a head of the first EAGLE."""
    layers_read: tuple[int, ...] = ()
    """The layers whose inputs an EAGLE-3 head reads; none: as `default_layers` has them."""
    norm_before_residual: bool = False
    """Whether what runs past an EAGLE-3 head's attention is normed."""
    steps: int = 0
    """The steps of the training."""
    held_out_accuracy: tuple[float, ...] = ()
    """By place of a chain: how often its first guess is what the model says, if those before it
    were, on text that was not trained on."""
    held_out_ranks: tuple[tuple[float, ...], ...] = ()
    """The same of its first, second, third, … guess."""


def default_layers(num_layers: int) -> tuple[int, ...]:
    """The layers whose inputs an EAGLE-3 head reads where it does not say (EAGLE-3's own code).

    >>> default_layers(32)
    (2, 16, 29)
    """
    return (2, num_layers // 2, num_layers - 3)
