"""What training holds in each precision, state by state: where mixed precision saves memory.

    states        bytes per parameter of the recipe                 `static_memory.py`
    activations   34 bytes per token and channel of a GPT layer in 16 bits, 68 in fp32
                                                 Korthikanti et al., 2205.05198, section 4

`torch.autocast` keeps weights, gradients and Adam in fp32 and casts weights on the way: a 16-bit
copy of them lives beside through the step (the cache of autocast). States are so no smaller than in
fp32; what shrinks is the activations.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.cost.static_memory import RECIPES, StateBytes, activation_bytes

ACTIVATION_BYTES_16 = 34
"""Kept per token and channel by a GPT layer in 16 bits with fused attention."""
_FORMS: dict[str, tuple[str, int, float]] = {
    "fp32": ("fp32 adam", 2, 0.0),
    "autocast": ("fp32 adam", 1, 2.0),
    "mixed": ("mixed adam", 1, 0.0),
    "mixed, fp32 gradients": ("mixed adam, fp32 gradients", 1, 0.0),
    "pure 16-bit": ("pure bf16 adam", 1, 0.0),
}
"""Form → its states, its activations over those of 16 bits, bytes of cast copies per parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionRow:
    """The memory of training in one form, in bytes."""

    form: str
    weights_bytes: float
    """The weights that the matmuls read, with cast copies."""
    gradient_bytes: float
    master_bytes: float
    optimizer_bytes: float
    activation_bytes: float
    total_bytes: float
    saved_share: float
    """The share of what fp32 holds that this form does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionTable:
    """Training in each form, on one device that shards nothing."""

    forms: tuple[PrecisionRow, ...]


def precision_memory(
    num_parameters: float, batch: int, seq: int, hidden: int, layers: int
) -> PrecisionTable:
    """What training with Adam holds in fp32, under autocast, mixed and in pure 16 bits.

    >>> rows = precision_memory(7e9, 1, 2048, 4096, 32).forms
    >>> [(row.form, round(row.total_bytes / 1e9)) for row in rows][:3]
    [('fp32', 130), ('autocast', 135), ('mixed', 121)]
    """
    if num_parameters <= 0.0 or min(batch, seq, hidden, layers) < 1:
        raise ValueError("parameters, batch, seq, hidden and layers are each above 0")
    kept = activation_bytes(batch, seq, hidden, layers, ACTIVATION_BYTES_16)
    rows: list[PrecisionRow] = []
    for form, (recipe, width, cast) in _FORMS.items():
        states = RECIPES[recipe]
        total = num_parameters * (states.total + cast) + width * kept
        whole = rows[0].total_bytes if rows else total
        rows.append(_row(form, states, num_parameters, cast, width * kept, 1.0 - total / whole))
    return PrecisionTable(forms=tuple(rows))


def _row(
    form: str,
    states: StateBytes,
    num_parameters: float,
    cast: float,
    activations: float,
    saved_share: float,
) -> PrecisionRow:
    return PrecisionRow(
        form=form,
        weights_bytes=num_parameters * (states.weights + cast),
        gradient_bytes=num_parameters * states.gradients,
        master_bytes=num_parameters * states.master,
        optimizer_bytes=num_parameters * states.optimizer,
        activation_bytes=activations,
        total_bytes=num_parameters * (states.total + cast) + activations,
        saved_share=saved_share,
    )
