"""What rounding activations does to a model, found when it is first loaded, and what follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ridgeline.serve.cache import KvShape
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.messages import MemoryRow
from ridgeline.serve.model import trial
from ridgeline.serve.model.kept import KeptStart
from ridgeline.serve.weights.rounding import (
    LARGEST_DIFFERENCE,
    has_rounded,
    keep_weights_alone,
    say_too_coarse,
    unrounded,
)

if TYPE_CHECKING:
    from ridgeline.serve.model.recurrent import RecurrentLayers


def settle_rounding(
    config: EngineConfig,
    model: Any,
    shapes: list[KvShape],
    kept: KeptStart | None,
    recurrent: RecurrentLayers | None,
) -> float | None:
    """What rounding the activations does to logits; a model that suffers keeps weights alone.

    None: none are rounded, or by the checkpoint's own wish.
    """
    if config.weights != "w8a8" or config.ranks > 1:
        return None
    if kept is not None and kept.proven is not None:
        difference = kept.proven.rounding
    elif has_rounded(model):
        vocab = model.config.get_text_config().vocab_size
        rounded = trial.logits_over_blocks(model, shapes, vocab, recurrent)
        with unrounded(model):
            plain = trial.logits_over_blocks(model, shapes, vocab, recurrent)
        difference = trial.worst_difference(rounded, plain)
        if difference > LARGEST_DIFFERENCE:
            keep_weights_alone(model, model.dtype)
            if kept is not None:
                kept.notice(model)
    else:
        difference = None
    if difference is not None and difference > LARGEST_DIFFERENCE:
        say_too_coarse(difference)
    return difference


def noted(rows: Sequence[MemoryRow], rounding: float | None) -> list[MemoryRow]:
    """Rows of the memory ledger, where those of rounded layers say what that does to logits."""
    if rounding is None:
        return list(rows)
    apart = f"; rounding moves logits by {rounding:.3f} of their spread"
    return [
        replace(row, note=row.note + apart) if row.what.endswith("activations too") else row
        for row in rows
    ]
