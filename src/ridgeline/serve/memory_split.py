"""One device's memory among several models: each engine's share, checked before one is started.

What a model's files weigh it gets in any case; what is left of the budget is split evenly, or as
the file says (`share`). Every engine then keeps to its own share, and refuses what does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ridgeline import quantity
from ridgeline.checkpoints.files import disk_bytes
from ridgeline.errors import InputError
from ridgeline.hardware.machine import Machine, this_machine
from ridgeline.serve.config import EngineConfig

_OF_SIXTEEN_BITS = {"int8": 0.55, "w8a8": 0.55, "int4": 0.35, "fp8": 0.55}
"""What is left of weights of sixteen bits, with embeddings and scales as they are: on the safe
side, since each engine counts for itself."""


def split_memory(
    configs: Sequence[EngineConfig],
    shares: Sequence[float | None],
    names: Sequence[str],
    machine: Machine | None = None,
) -> list[EngineConfig]:
    """The configurations with a share of the memory each.

    Args:
        configs: Those of all engines; the first one's `memory_share` is the budget of all.
        shares: The part of the budget that is named for a model; None: of what is left over.
        names: How the models are called.
        machine: Whose memory it is; None: this one's.

    Raises:
        InputError: They do not fit together; the line says what each needs.
    """
    memory = _device_bytes(configs, this_machine() if machine is None else machine)
    budget = memory * configs[0].memory_share
    needs = {
        name: _weight_bytes(config) + (config.kv_bytes or 0)
        for name, config in zip(names, configs, strict=True)
    }
    fixed = [None if share is None else share * budget for share in shares]
    for name, room in zip(names, fixed, strict=True):
        if room is not None and room < needs[name]:
            raise InputError(_too_much(f"share of {name}", {name: needs[name]}, room))
    open_needs = {
        name: needs[name] for name, room in zip(names, fixed, strict=True) if room is None
    }
    left = budget - sum(room for room in fixed if room is not None)
    spare = left - sum(open_needs.values())
    if spare < 0:
        raise InputError(_too_much("memory", open_needs, left))
    each = spare / max(1, len(open_needs))
    rooms = [
        needs[name] + each if room is None else room
        for name, room in zip(names, fixed, strict=True)
    ]
    return [
        msgspec.structs.replace(config, memory_share=room / memory)
        for config, room in zip(configs, rooms, strict=True)
    ]


def _device_bytes(configs: Sequence[EngineConfig], machine: Machine) -> int:
    """Memory of the one device that all of them run on."""
    kinds = {one.device for one in configs}
    if len(kinds) > 1:
        raise InputError(f"models on {' and '.join(sorted(kinds))}: all share one device")
    gpus = [one.memory_bytes for one in machine.gpus if one.memory_bytes]
    if gpus and kinds != {"cpu"}:
        return gpus[0]
    return machine.memory_limit_bytes or machine.memory_bytes


def _weight_bytes(config: EngineConfig) -> int:
    """About what the weights take, as the files say; a hub's id that is not here counts nothing."""
    folder = Path(config.model)
    stored = disk_bytes(folder) if folder.is_dir() else 0
    return int(stored * _OF_SIXTEEN_BITS.get(config.weights, 1.0))


def _too_much(what: str, needs: Mapping[str, int], room: float) -> str:
    listed = " and ".join(f"{name} {quantity.binary_memory(size)}" for name, size in needs.items())
    return (
        f"{what}: weights and kv_bytes want {listed}, and there are {quantity.binary_memory(room)};"
        ' serve fewer models, give weights = "int8", or a larger share'
    )
