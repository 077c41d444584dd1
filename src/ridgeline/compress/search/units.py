"""Layers that get one scheme together, which schemes fit them, and what each costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.checkpoints.layers import matrices_of
from ridgeline.checkpoints.skeleton import ModelSkeleton
from ridgeline.compress.evaluate.judge import AS_GIVEN, Bench, OnProgress, speedup
from ridgeline.errors import InputError
from ridgeline.records.compression import Decoding
from ridgeline.records.scheme import Scheme

FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"))
"""Engines (vLLM, ours) compute each of these as one product, which takes one scheme."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Layers with one scheme."""

    layers: tuple[str, ...]
    depths: tuple[int, ...]
    """The inputs of each layer."""
    num_weights: int

    @property
    def name(self) -> str:
        """The unit in words, for people and the log."""
        return " + ".join(self.layers)

    def takes(self, scheme: Scheme) -> bool:
        """Whether its groups divide every layer, and no layer is to stay as it is."""
        if any(layer.endswith(left) for layer in self.layers for left in scheme.ignore):
            return False
        form = scheme.weights
        group = form.group if form is not None else None
        return form is not None and all(not group or depth % group == 0 for depth in self.depths)


def units_of(model: Path) -> list[Unit]:
    """The units of a model directory, block by block.

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


Costs = dict[tuple[str, str], float]
"""(unit, scheme) → cost; absent where the scheme does not fit the unit, or gains nothing."""


def sizes(units: Sequence[Unit], directories: Mapping[str, Path]) -> Costs:
    """Bytes of the tensors that each scheme's directory holds for a unit."""
    found = {}
    for scheme, directory in directories.items():
        files = CheckpointFiles(directory)
        by_layer: dict[str, int] = {}
        for name in files.names:
            layer = name.rpartition(".")[0]
            by_layer[layer] = by_layer.get(layer, 0) + files.stored_bytes(name)
        for unit in units:
            rounded = f"{unit.layers[0]}.weight_scale" in files.names
            if rounded or scheme == AS_GIVEN:
                found[unit.name, scheme] = float(sum(by_layer[layer] for layer in unit.layers))
    return found


def times(
    units: Sequence[Unit],
    fitting: Mapping[str, Sequence[Unit]],
    directories: Mapping[str, Path],
    bench: Bench,
    on_progress: OnProgress,
) -> Costs:
    """Seconds of a decode step, from whole models that decode in turns.

    What a scheme saves of a step is shared out among the layers that it rounded, by their weights:
    decoding takes time in proportion to what it reads.

    Args:
        units: All.
        fitting: Of each scheme, those that it rounded.
        directories: Of the model as given and of each scheme.
        bench: Measures.
        on_progress: Told what is under way.

    Raises:
        InputError: The model as given cannot be served, or no scheme makes it faster.
    """
    names = list(directories)
    measured = dict(
        zip(names, bench([directories[name] for name in names], on_progress), strict=True)
    )
    dense = measured.pop(AS_GIVEN)
    if not isinstance(dense, Decoding):
        raise InputError(f"--for latency: decoding was not measured: {dense}")
    step, weights = median(dense.step_seconds), sum(unit.num_weights for unit in units)
    found = {(unit.name, AS_GIVEN): step * unit.num_weights / weights for unit in units}
    why = []
    for scheme, own in measured.items():
        if not isinstance(own, Decoding):
            why.append(f"{scheme}: {own}")
            continue
        gain = speedup(dense, own)
        if not gain.faster:
            why.append(f"{scheme}: {gain.ratio:.2f}× decodes no faster beyond doubt")
            continue
        saved = step * (1 - 1 / gain.ratio) / sum(unit.num_weights for unit in fitting[scheme])
        for unit in fitting[scheme]:
            found[unit.name, scheme] = (step / weights - saved) * unit.num_weights
    if len(found) == len(units):
        raise InputError(f"--for latency: no candidate is faster here ({'; '.join(why)})")
    return found
