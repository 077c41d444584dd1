"""A LoRA adapter added to the weights it was trained beside.

    W + (α/r) B A         LoRA, arXiv 2106.09685; with rank-stabilised scaling α/√r (2312.03732)
    m · V / ‖V‖ by rows   DoRA, V = W + (α/r) B A (arXiv 2402.09353, equation 5)

Into weights in few bits: dequantised, added, and rounded again to the same format, each to the
nearest level, and what that loses is told. Tensors are read and written one layer at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ridgeline.checkpoints.adapters import AdapterFile, examine
from ridgeline.checkpoints.compressed_tensors import WeightReader
from ridgeline.checkpoints.compressed_writer import tensors_of
from ridgeline.checkpoints.low_rank import LowRank, read_low_rank
from ridgeline.checkpoints.quantised import ActivationScales, Quantised
from ridgeline.checkpoints.writing import Shards, check_free, copy_companions, written_aside
from ridgeline.compress.rounding import to_nearest
from ridgeline.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What became of one layer."""

    name: str
    change: float
    """‖W' - W‖ / ‖W‖ of the adapter."""
    error: float = 0.0
    """‖Ŵ' - W'‖ / ‖W'‖ of quantising again; 0 where weights are dense."""


@torch.no_grad()
def merge(model: Path, adapter: Path, out: Path) -> tuple[Merged, ...]:
    """Write the model with the adapter in its weights; dtypes and schemes stay as they are.

    Args:
        model: A Hugging Face directory, dense or saved by `ridgeline compress`.
        adapter: The directory that peft saved: LoRA, rsLoRA or DoRA.
        out: Must not exist, or be empty.

    Raises:
        InputError: The adapter is of another kind or of another model.
    """
    check_free(out)
    weights = WeightReader(model)
    file = examine(adapter, merging=True)
    layers: dict[str, list[str]] = {}
    for name in weights.tensors.names:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    prefix = _prefix(file, layers, adapter, model)
    additions = {prefix + own: addition for own, addition in read_low_rank(file).items()}
    for layer, addition in additions.items():
        _check_shape(layer, addition, weights.shape(f"{layer}.weight"), transposed=file.transposed)
    done = []
    with written_aside(out) as aside:
        shards = Shards(aside)
        for layer, names in layers.items():
            tensors = {name: weights.tensors.read(name) for name in names}
            if layer in additions:
                told, replaced = _merged(weights, layer, additions[layer], file)
                done.append(told)
                tensors |= {f"{layer}.{leaf}": tensor for leaf, tensor in replaced.items()}
            for name, tensor in tensors.items():
                shards.add(name, tensor)
        shards.close()
        (aside / "config.json").write_bytes((model / "config.json").read_bytes())
        copy_companions(model, aside)
    return tuple(done)


def _merged(
    weights: WeightReader, layer: str, addition: LowRank, file: AdapterFile
) -> tuple[Merged, dict[str, Tensor]]:
    """What to tell, and the tensors that take the place of those of the layer."""
    weight = weights.read(f"{layer}.weight")
    before = weight.dequantised() if isinstance(weight, Quantised) else weight.float()
    after = _added(before, addition, transposed=file.transposed)
    change = _relative(after - before, before)
    if isinstance(weight, Tensor):
        return Merged(name=layer, change=change), {"weight": after.to(weight.dtype)}
    if weights.format_of(layer).block_rows is not None:
        raise InputError(
            f"{weights.directory}: {layer} has a scale per block, which is not written"
        )
    activations: ActivationScales | None = weights.activations(layer)
    dtype = weight.scales.dtype  # E8M0 and E4M3 are scales of their formats, not of a model
    again = to_nearest(after, weight.format, layer, dtype=dtype if dtype.itemsize > 1 else None)
    error = _relative(again.dequantised() - after, after)
    return Merged(name=layer, change=change, error=error), tensors_of(again, activations)


def _added(weight: Tensor, addition: LowRank, *, transposed: bool) -> Tensor:
    """The weight with the adapter in it, float32, laid out as it was."""
    change = addition.b @ addition.a.float()
    result = weight + (change.T if transposed else change)
    if addition.magnitude is None:
        return result
    lengths = torch.linalg.norm(result, dim=0 if transposed else 1, keepdim=True)
    return result * (addition.magnitude.view_as(lengths) / lengths)


def _check_shape(
    layer: str, addition: LowRank, shape: tuple[int, ...], *, transposed: bool
) -> None:
    own = (addition.b.shape[0], addition.a.shape[1])
    own = own[::-1] if transposed else own
    outputs = addition.b.shape[0]
    if own != shape or (addition.magnitude is not None and len(addition.magnitude) != outputs):
        raise InputError(
            f"the adapter of {layer} is for a weight of {own}, and the model's is {shape}; it"
            " was trained on another model"
        )


def _prefix(file: AdapterFile, layers: dict[str, list[str]], adapter: Path, model: Path) -> str:
    """What the model's files put before the adapter's names; mostly nothing."""
    adapted = [layer.name for layer in file.layers]
    for name in layers:
        for own in adapted:
            if name.endswith(own):
                prefix = name.removesuffix(own)
                if all(prefix + one in layers for one in adapted):
                    return prefix
    missing = sorted(set(adapted) - set(layers))[:1]
    raise InputError(
        f"{adapter}: it adapts {missing[0] if missing else 'layers'}, which {model} does not have;"
        " it was trained on another model"
    )


def _relative(difference: Tensor, of: Tensor) -> float:
    whole = float(of.norm())
    return float(difference.norm()) / whole if whole else 0.0
