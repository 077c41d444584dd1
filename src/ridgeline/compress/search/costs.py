"""What each unit costs under each scheme: bytes on disk, or its part of a decode step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.compress.evaluate.judge import AS_GIVEN, Bench, Say, speedup
from ridgeline.compress.search.units import Unit
from ridgeline.errors import InputError
from ridgeline.records.compression import Decoding

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
    say: Say,
) -> Costs:
    """Seconds of a decode step, from whole models that decode in turns.

    What a scheme saves of a step is shared out among the layers that it rounded, by their weights:
    decoding takes time in proportion to what it reads.

    Args:
        units: All.
        fitting: Of each scheme, those that it rounded.
        directories: Of the model as given and of each scheme.
        bench: Measures.
        say: Told what is under way.

    Raises:
        InputError: The model as given cannot be served, or no scheme makes it faster.
    """
    names = list(directories)
    answers = dict(zip(names, bench([directories[name] for name in names], say), strict=True))
    dense = answers.pop(AS_GIVEN)
    if not isinstance(dense, Decoding):
        raise InputError(f"--for latency: decoding was not measured: {dense}")
    step, weights = median(dense.step_seconds), sum(unit.num_weights for unit in units)
    found = {(unit.name, AS_GIVEN): step * unit.num_weights / weights for unit in units}
    why = []
    for scheme, own in answers.items():
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
