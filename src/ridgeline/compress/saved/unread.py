"""What transformers does not read of a compressed model, though the server here does.

Found by reading tiny models of 177 families back (transformers 5.23 with compressed-tensors 0.20):
its reader unpacks experts of few formats, all of them in one, and joins no dense tensors beside
compressed layers. Experts that are stored in one tensor have no compressed form there at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ridgeline.checkpoints.compressed_tensors import WeightReader, quantisation_of
from ridgeline.checkpoints.experts import own_name
from ridgeline.checkpoints.skeleton import ModelSkeleton, StoredPiece
from ridgeline.compress.pruning.report import Unpacked
from ridgeline.errors import InputError
from ridgeline.records.scheme import NumberFormat

Forms = tuple[NumberFormat, NumberFormat | None]
"""What the weights of a layer, and its inputs, are rounded to."""


def unread(pieces: Mapping[str, list[StoredPiece]], quantised: Mapping[str, Forms]) -> list[str]:
    """One line for each kind of tensor that transformers stumbles over.

    Args:
        pieces: Of all parameters of the model.
        quantised: The formats of its compressed layers, by their stored names.
    """
    if not quantised:
        return []
    found = []
    of_experts: dict[Forms | None, str] = {}
    alone = joined = ""
    for target, parts in pieces.items():
        names = [part.saved_name.removesuffix(".weight") for part in parts]
        kept = quantised.keys().isdisjoint(names)
        if any(_has_own_name(part) for part in parts):
            alone = alone or ("" if kept else names[0])
        elif parts[0].expert is not None:
            of_experts |= {quantised.get(name): name for name in names}
        elif kept and len(parts) > 1:
            joined = joined or target
    if alone:
        found.append(
            f"{alone}: transformers (5.23 was tried) does not read such experts one by one"
        )
    if of_experts:
        (form, name), *others = of_experts.items()
        if others or form is None:
            found.append(f"{name}: transformers (5.23 was tried) reads all experts in one format")
        elif not _is_expert_read(*form):
            found.append(f"{name}: transformers (5.23 was tried) does not read experts so")
    if joined:
        found.append(
            f"{joined}: transformers (5.23 was tried) does not join it beside compressed layers"
        )
    return [f"{line}; `ridgeline serve` and `evaluate` do" for line in found]


def is_read_here_alone(directory: Path) -> bool:
    """Whether transformers would not read a directory, or other numbers than it has."""
    if not quantisation_of(directory):
        return False
    try:
        skeleton, reader = ModelSkeleton(Unpacked(directory)), WeightReader(directory)
        layers = [name.removesuffix(".weight") for name in reader.names]
        formats = {layer: reader.format_of(layer) for layer in layers if reader.is_quantised(layer)}
        forms = {layer: (one.weights, one.activation_format) for layer, one in formats.items()}
    except InputError:  # which transformers may know, or say better
        return False
    return bool(unread(skeleton.pieces, forms))


def _has_own_name(piece: StoredPiece) -> bool:
    """Whether it is, or will be, an expert under a name that only is read here."""
    return piece.expert is not None and piece.saved_name == own_name(piece.target, piece.expert)


def _is_expert_read(weights: NumberFormat, activations: NumberFormat | None) -> bool:
    """Whether experts are unpacked: fp8, or symmetric integers beside which inputs stay as is."""
    if weights.kind == "fp8_e4m3":
        return True
    return weights.kind == "int" and weights.symmetric and activations is None
