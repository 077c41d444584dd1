"""Finished blocks, each in a file of its own until the whole model is saved.

A file is whole or not there. It is read back to go on after a kill, which costs one block at most,
to measure the whole model, and to save it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from torch import Tensor

from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.checkpoints.quantised import ActivationScales, Quantised
from ridgeline.errors import InputError
from ridgeline.records.scheme import NumberFormat, Scheme
from ridgeline.records.store import write_atomically


class LayerDone(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one weight matrix."""

    name: str
    scheme: str
    """Names joined by " + "; "" where it stayed as it is."""
    error: float
    """The relative error, as `Rounded.error` has it."""
    notices: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Finished:
    """What became of one block: its tensors as they will be saved."""

    layers: list[LayerDone] = field(default_factory=list)
    dense: dict[str, Tensor] = field(default_factory=dict)
    """By name, in the dtype that is saved."""
    quantised: dict[str, tuple[Quantised, ActivationScales | None]] = field(default_factory=dict)
    """By the layer's name, without ".weight"."""
    cache: dict[str, tuple[ActivationScales, ActivationScales]] = field(default_factory=dict)
    """By attention layer, of its keys and values."""


class _Formats(msgspec.Struct, frozen=True):
    weights: NumberFormat
    inputs: NumberFormat | None


class _About(msgspec.Struct, frozen=True):
    layers: list[LayerDone]
    formats: dict[str, _Formats]
    cache: dict[str, NumberFormat]


_WEIGHT = ("levels", "scales", "zeros", "global_scale", "order", "books")
_INPUTS = ("scale", "zero", "global_scale")
_CACHED = ("keys", "values")


def write(path: Path, block: Finished) -> None:
    """Through a temporary file, so that what is there is whole.

    Raises:
        OSError: It cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors = {f"dense|{name}": tensor for name, tensor in block.dense.items()}
    for name, (weight, inputs) in block.quantised.items():
        for part in _WEIGHT:
            tensors[f"weight|{part}|{name}"] = getattr(weight, part)
        for part in _INPUTS if inputs is not None else ():
            tensors[f"inputs|{part}|{name}"] = getattr(inputs, part)
    for name, both in block.cache.items():
        for kind, inputs in zip(_CACHED, both, strict=True):
            for part in _INPUTS:
                tensors[f"{kind}|{part}|{name}"] = getattr(inputs, part)
    about = _About(
        layers=block.layers,
        cache={name: keys.format for name, (keys, _) in block.cache.items()},
        formats={
            name: _Formats(weight.format, inputs.format if inputs else None)
            for name, (weight, inputs) in block.quantised.items()
        },
    )
    temporary = path.with_suffix(".writing")
    try:
        save_file(
            {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None},
            temporary,
            # One key only: their order in the file is not fixed.
            metadata={"about": msgspec.json.encode(about).decode()},
        )
    except SafetensorError as error:  # a full disk, which safetensors tells in its own way
        raise OSError(f"{temporary}: {error}") from None
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read(path: Path) -> Finished:
    """Read back what `write` wrote.

    Raises:
        InputError: It is damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about = msgspec.json.decode(file.metadata()["about"], type=_About)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, TypeError, msgspec.MsgspecError) as error:
        raise InputError(f"{path}: {error}; remove its folder and compress anew") from None
    block = Finished(layers=about.layers)
    for name, formats in about.formats.items():
        weight = {part: tensors.pop(f"weight|{part}|{name}", None) for part in _WEIGHT}
        inputs = {part: tensors.pop(f"inputs|{part}|{name}", None) for part in _INPUTS}
        block.quantised[name] = (
            Quantised(format=formats.weights, **weight),
            None if formats.inputs is None else ActivationScales(format=formats.inputs, **inputs),
        )
    for name, form in about.cache.items():
        keys, values = (
            ActivationScales(
                format=form,
                **{part: tensors.pop(f"{kind}|{part}|{name}", None) for part in _INPUTS},
            )
            for kind in _CACHED
        )
        block.cache[name] = (keys, values)
    block.dense = {name.removeprefix("dense|"): tensor for name, tensor in tensors.items()}
    return block


class BlockLog:
    """Blocks 0 … n, each a file; beside them a fingerprint of what is compressed how.

    Raises:
        InputError: The folder belongs to another compression.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder = folder
        claim = folder / "fingerprint"
        if claim.exists() and claim.read_bytes() != fingerprint.encode("ascii"):
            raise InputError(
                f"{folder}: it holds the blocks of another compression (model, schemes or "
                "calibration differ); remove it"
            )
        write_atomically(claim, fingerprint.encode("ascii"))

    def num_done(self) -> int:
        """Blocks that need not be done again."""
        count = 0
        while self._path(count).exists():
            count += 1
        return count

    def write(self, block: int, result: Finished) -> None:
        """Keep a block; it is on the disk when this returns."""
        write(self._path(block), result)

    def read(self, block: int) -> Finished:
        """A block that was kept."""
        return read(self._path(block))

    def remove(self) -> None:
        """The folder and all in it."""
        shutil.rmtree(self.folder)

    def _path(self, block: int) -> Path:
        return self.folder / f"block-{block:05d}.safetensors"


def fingerprint_of(
    checkpoint: CheckpointFiles,
    schemes: tuple[Scheme, ...],
    of_layer: dict[str, tuple[Scheme, ...]],
    tokens: Tensor | None,
    seed: int,
) -> str:
    """Equal for the same model files, schemes and calibration."""
    digest = hashlib.sha256(msgspec.json.encode((schemes, sorted(of_layer.items()), seed)))
    for path in sorted(checkpoint.directory.glob("*.safetensors")):
        about = path.stat()
        digest.update(f"{path.name} {about.st_size} {about.st_mtime_ns}".encode())
    digest.update(msgspec.json.encode(checkpoint.config, order="sorted"))
    if tokens is not None:
        digest.update(tokens.contiguous().numpy().tobytes())
    return digest.hexdigest()
