"""What transformers does not read of a compressed model, though the server here does.

Found by reading tiny models of 177 families back (transformers 5.23 with compressed-tensors 0.20):
its reader unpacks experts of few formats, and joins no dense tensors beside compressed layers.
"""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.checkpoints.skeleton import ModelSkeleton
from ridgeline.records.scheme import NumberFormat

Forms = tuple[NumberFormat, NumberFormat | None]
"""What the weights of a layer, and its inputs, are rounded to."""


def unread(skeleton: ModelSkeleton, quantised: Mapping[str, Forms]) -> tuple[str, ...]:
    """One line for each kind of tensor that transformers stumbles over.

    Args:
        skeleton: The model.
        quantised: The formats of its compressed layers, by their stored names.
    """
    found = []
    for pieces in skeleton.pieces.values() if quantised else ():
        names = [piece.saved_name.removesuffix(".weight") for piece in pieces]
        forms = quantised.get(names[0])
        if forms is not None and pieces[0].expert is not None and not _is_expert_read(*forms):
            found.append(f"{names[0]}: transformers (5.23 was tried) does not read experts so")
            break
    for target, pieces in skeleton.pieces.items() if quantised else ():
        dense = not any(piece.saved_name.removesuffix(".weight") in quantised for piece in pieces)
        if dense and len(pieces) > 1 and all(piece.expert is None for piece in pieces):
            found.append(
                f"{target}: transformers (5.23 was tried) does not join it beside compressed layers"
            )
            break
    return tuple(f"{line}; `ridgeline serve` reads it" for line in found)


def _is_expert_read(weights: NumberFormat, activations: NumberFormat | None) -> bool:
    """Whether experts are unpacked: fp8, or symmetric integers beside which inputs stay as is."""
    if weights.kind == "fp8_e4m3":
        return True
    return weights.kind == "int" and weights.symmetric and activations is None
