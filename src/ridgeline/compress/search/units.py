"""Layers that get one scheme together, and which schemes fit them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.checkpoints.layers import matrices_of
from ridgeline.checkpoints.skeleton import ModelSkeleton
from ridgeline.records.scheme import Scheme

FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"))
"""Engines (vLLM, ours) compute each of these as one product, which takes one scheme."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Layers with one scheme."""

    layers: tuple[str, ...]
    depths: tuple[int, ...]
    """Inputs of each."""
    num_weights: int

    @property
    def name(self) -> str:
        """For people and the journal."""
        return " + ".join(self.layers)

    def takes(self, scheme: Scheme) -> bool:
        """Whether its groups divide every layer, and no layer is to stay as it is."""
        if any(layer.endswith(left) for layer in self.layers for left in scheme.ignore):
            return False
        form = scheme.weights
        group = form.group if form is not None else None
        return form is not None and all(not group or depth % group == 0 for depth in self.depths)


def units_of(model: Path) -> list[Unit]:
    """Of a model directory, block by block.

    Raises:
        InputError: Its tensors and its configuration do not fit.
    """
    skeleton = ModelSkeleton(CheckpointFiles(model))
    shapes: dict[str, tuple[int, int]] = {}
    for block in range(len(skeleton.blocks)):
        for matrix in matrices_of(skeleton, block):
            outputs, depth = matrix.weight.shape
            shapes[matrix.name] = (outputs, depth)
    together: dict[tuple[str, int], list[str]] = {}
    for name in shapes:
        path, _, leaf = name.rpartition(".")
        place = next((i for i, names in enumerate(FUSED) if leaf in names), None)
        key = (name, 0) if place is None else (path, place + 1)
        together.setdefault(key, []).append(name)
    return [_unit(names, shapes) for names in together.values()]


def _unit(names: Sequence[str], shapes: dict[str, tuple[int, int]]) -> Unit:
    return Unit(
        layers=tuple(names),
        depths=tuple(shapes[name][1] for name in names),
        num_weights=sum(shapes[name][0] * shapes[name][1] for name in names),
    )
