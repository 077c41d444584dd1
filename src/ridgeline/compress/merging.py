"""A LoRA adapter added to the weights it was trained beside.

    W + (α/r) B A         LoRA, arXiv 2106.09685; with rank-stabilised scaling α/√r (2312.03732)
    m · V / ‖V‖ by rows   DoRA, V = W + (α/r) B A (arXiv 2402.09353, equation 5)

Into weights in few bits: dequantised, added, and rounded again to the same format, each to the
nearest level, and what that loses is told. Tensors are read and written one layer at a time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ridgeline.compress.quantised import Inputs, Quantised
from ridgeline.compress.rounding import to_nearest
from ridgeline.compress.saved.aside import check_free, copy_companions, move_into_place
from ridgeline.compress.saved.compressed_tensors import stored
from ridgeline.compress.saved.directory import Directory
from ridgeline.compress.saved.shards import Shards
from ridgeline.compress.streaming.checkpoint import Checkpoint
from ridgeline.errors import InputError, in_words
from ridgeline.records.input_file import read_json

_KEY = re.compile(r"base_model\.model\.(.+)\.(lora_A|lora_B|lora_magnitude_vector)(?:\.weight)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """One layer."""

    name: str
    change: float
    """‖W' - W‖ / ‖W‖ of the adapter."""
    error: float = 0.0
    """‖Ŵ' - W'‖ / ‖W'‖ of rounding again; 0 where weights are dense."""


@torch.no_grad()
def merge(model: Path, adapter: Path, out: Path) -> tuple[Merged, ...]:
    """Write the model with the adapter in its weights; dtypes and schemes stay as they are.

    Args:
        model: A Hugging Face directory, dense or saved by `ridgeline compress`.
        adapter: As peft saves it: LoRA, rsLoRA or DoRA.
        out: Must not exist, or be empty.

    Raises:
        InputError: The adapter is of another kind or of another model.
    """
    check_free(out)
    checkpoint = Checkpoint(model)
    additions = _Adapter(adapter)
    layers, directory = _Layers(checkpoint), Directory(model)
    prefix = _prefix(additions, layers, adapter, model)
    for own in sorted(additions.names):
        additions.check(own, directory.shape(f"{prefix}{own}.weight"))
    aside = out.with_name(f".{out.name}.merging")
    _emptied(aside)
    shards = Shards(aside)
    done = []
    for name, tensors in layers:
        whole = {f"{name}.{leaf}" if name else leaf: tensor for leaf, tensor in tensors.items()}
        own = name.removeprefix(prefix)
        if prefix + own == name and own in additions.names:
            weight = directory.read(f"{name}.weight")
            inputs = directory.inputs(name) if isinstance(weight, Quantised) else None
            told, replaced = _merged(name, weight, inputs, additions, own)
            done.append(told)
            whole |= {f"{name}.{leaf}": tensor for leaf, tensor in replaced.items()}
        for full, tensor in whole.items():
            shards.add(full, tensor)
    shards.close()
    (aside / "config.json").write_bytes((model / "config.json").read_bytes())
    copy_companions(model, aside)
    move_into_place(aside, out)
    return tuple(done)


def _merged(
    name: str, weight: Tensor | Quantised, inputs: Inputs | None, additions: _Adapter, own: str
) -> tuple[Merged, dict[str, Tensor]]:
    """What to tell, and the tensors that take the place of those of the layer."""
    dense = weight.dequantised() if isinstance(weight, Quantised) else weight.float()
    after = additions.added(own, dense)
    change = _relative(after - dense, dense)
    if isinstance(weight, Tensor):
        return Merged(name=name, change=change), {"weight": after.to(weight.dtype)}
    dtype = weight.scales.dtype  # E8M0 and E4M3 are scales of their formats, not of a model
    again = to_nearest(after, weight.format, name, dtype=dtype if dtype.itemsize > 1 else None)
    error = _relative(again.dequantised() - after, after)
    return Merged(name=name, change=change, error=error), stored(again, inputs)


class _Adapter:
    """What peft saved."""

    def __init__(self, folder: Path) -> None:
        self._config = check_adapter(folder)
        self._turned = bool(self._config.get("fan_in_fan_out"))  # GPT-2 keeps [in, out]
        self._tensors: dict[str, dict[str, Tensor]] = {}
        for key, tensor in _tensors_of(folder).items():
            found = _KEY.fullmatch(key)
            if found is None:
                raise InputError(
                    f"{folder}: {key} is no part of a LoRA on linear layers; embeddings and other"
                    " modules that were trained whole are not merged here"
                )
            self._tensors.setdefault(found[1], {})[found[2]] = tensor.float()

    @property
    def names(self) -> set[str]:
        """Of the layers that it adapts."""
        return set(self._tensors)

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Refuse a layer of another shape.

        Raises:
            InputError: It is.
        """
        parts = self._tensors[name]
        own = (parts["lora_B"].shape[0], parts["lora_A"].shape[1])
        own = own[::-1] if self._turned else own
        if own != shape:
            raise InputError(
                f"the adapter of {name} is for a weight of {own}, and the model's is {shape}; it"
                " was trained on another model"
            )

    def added(self, name: str, weight: Tensor) -> Tensor:
        """The weight with the adapter in it, float32, laid out as it was (see `check`)."""
        parts = self._tensors[name]
        down, up = parts["lora_A"], parts["lora_B"]
        product = up @ down
        change = (product.T if self._turned else product) * self._scaling(name, down.shape[0])
        result = weight + change
        magnitude = parts.get("lora_magnitude_vector")
        if magnitude is None:
            return result
        rows = 0 if self._turned else 1
        lengths = torch.linalg.norm(result, dim=rows, keepdim=True)
        return result * (magnitude.view_as(lengths) / lengths)

    def _scaling(self, name: str, rank: int) -> float:
        alpha = _by_pattern(self._config.get("alpha_pattern"), name, self._config["lora_alpha"])
        return alpha / (math.sqrt(rank) if self._config.get("use_rslora") else rank)


class _Layers:
    """A model directory, the tensors of one layer after another."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._by_layer: dict[str, list[str]] = {}
        for name in checkpoint.names:
            self._by_layer.setdefault(name.rpartition(".")[0], []).append(name)

    @property
    def names(self) -> set[str]:
        return set(self._by_layer)

    def __iter__(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        for layer, names in self._by_layer.items():
            yield layer, {n.rpartition(".")[2]: self._checkpoint.read(n) for n in names}


def _prefix(additions: _Adapter, layers: _Layers, adapter: Path, model: Path) -> str:
    """What the model's files put before the adapter's names, or leave out as `""`."""
    for name in layers.names:
        for own in additions.names:
            if name.endswith(own):
                prefix = name.removesuffix(own)
                if all(prefix + one in layers.names for one in additions.names):
                    return prefix
    missing = sorted(additions.names - layers.names)[:1]
    raise InputError(
        f"{adapter}: it adapts {missing[0] if missing else 'layers'}, which {model} does not have;"
        " it was trained on another model"
    )


def check_adapter(folder: Path) -> dict[str, Any]:
    """Its configuration.

    Raises:
        InputError: It is none that can be merged.
    """
    path = folder / "adapter_config.json"
    config = read_json(path, dict[str, Any], cure="give the folder that peft saved")
    kind = config.get("peft_type")
    if kind != "LORA":
        raise InputError(f"{path}: an adapter of type {kind}; LoRA, rsLoRA and DoRA are merged")
    if config.get("bias", "none") != "none" or config.get("lora_bias"):
        raise InputError(f"{path}: its biases were trained too, which is not merged here")
    return config


def _tensors_of(folder: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / "adapter_model.safetensors"
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; save the adapter as safetensors") from None
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: {in_words(error)}") from None
    return tensors


def _by_pattern(patterns: Mapping[str, float] | None, name: str, default: float) -> float:
    """As peft: the first pattern that the end of a name matches."""
    for pattern, value in (patterns or {}).items():
        if re.fullmatch(rf"(.*\.)?({pattern})", name):
            return value
    return default


def _relative(difference: Tensor, of: Tensor) -> float:
    whole = float(of.norm())
    return float(difference.norm()) / whole if whole else 0.0


def _emptied(folder: Path) -> None:
    """What an interrupted merge left goes."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
