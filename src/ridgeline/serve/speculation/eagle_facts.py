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
    steps: int = 0
    """The steps of the training."""
    held_out_accuracy: tuple[float, ...] = ()
    """How often its first guess is what the model says, on text that was not trained on."""
