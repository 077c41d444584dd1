"""What the entry of a packed model is named by, namely all that it depends on.

The checkpoint, the asked format and whose kernel multiplies it, the layout that `LAYOUT` counts,
Ridgeline's own code that packs, checks and multiplies, torch, transformers and the CPU. A
checkpoint is known by the size and time of change of each file and by samples of what is in it,
not by where it lies: another one that was put in its place is another model, a copy that keeps its
times is the same.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import torch

from ridgeline.checkpoints.digest import sampled_digest
from ridgeline.hardware.environment import installed
from ridgeline.hardware.machine import this_machine
from ridgeline.kernels.cpu import build
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.packed import entries
from ridgeline.serve.packed.entries import SUFFIX, folder, name_for_people
from ridgeline.serve.weights.choice import Format, Kind, kernel_for

LAYOUT = 2
"""Raise it when an entry changes its meaning: older ones are then not found."""
_CODE = (
    *("serve/packed", "serve/weights", "serve/model", "checkpoints"),
    *("serve/tensor_parallel", "serve/pipeline_parallel"),
)
"""Rooms whose Python decides what is in an entry; the kernels' sources are in their libraries."""
_KINDS: dict[str, Kind] = {"model": "dense", "int8": "int8", "int4": "int4", "w8a8": "w8a8"}


def key_of(
    config: EngineConfig, dtype: torch.dtype, checkpoint: list[Path], rank: int = 0
) -> str | None:
    """The name of a model's entry, or of a rank's share of it; None: it is not worth one.

    Args:
        config: Of the engine.
        dtype: The dtype of what is not quantised.
        checkpoint: The files of the weights.
        rank: Which of those that the model is cut over.
    """
    files = [path.stat() for path in checkpoint]
    if sum(one.st_size for one in files) < entries.LEAST_BYTES:
        return None
    kind = _KINDS.get(config.weights)
    if kind is None:
        return None
    group = config.group_size if kind == "int4" else None
    chosen = kernel_for(form_of_weights(config, dtype))
    cpu = this_machine(gpus=[]).cpu
    parts: list[object] = [LAYOUT, _code_digest(), dtype, kind, group, chosen.kernel]
    parts += [f"{name}=={installed(name)}" for name in ("torch", "transformers", "ridgeline")]
    parts += [cpu.model, *cpu.isa, *(one.path.name for one in build.wanted_recipes())]
    if config.ranks > 1:
        parts += [config.tp, config.pp, config.expert_parallel, rank]
    about = Path(config.model) / "config.json"
    parts.append(hashlib.sha256(about.read_bytes()).hexdigest())
    for path, known in zip(checkpoint, files, strict=True):
        parts += [path.name, known.st_size, known.st_mtime_ns, sampled_digest(path, known.st_size)]
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:24]


def form_of_weights(config: EngineConfig, dtype: torch.dtype) -> Format:
    """The format of most of a model's layers, whose kernel decides how all of them lie."""
    kind = _KINDS[config.weights]
    arithmetic = torch.float32 if dtype == torch.float16 else dtype
    return Format(kind, arithmetic, config.group_size if kind == "int4" else None)


def path_of(config: EngineConfig, key: str) -> Path:
    """The file of an entry; the model's name in it is for people."""
    name = name_for_people(Path(config.model))
    return folder() / f"{name}-{config.weights}-{key}{SUFFIX}"


@functools.cache
def _code_digest() -> str:
    """What all Python sources of the rooms that an entry depends on hash to."""
    top = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for room in _CODE:
        for path in sorted((top / room).glob("*.py")):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
