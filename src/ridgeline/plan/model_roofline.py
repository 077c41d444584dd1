"""Every operator of a model on the roofline of one or more devices (`ridgeline roofline`).

From a model's name or configuration and devices' names to the record that `report/` draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ridgeline.cost.operator import WIDTHS, ModelOperator
from ridgeline.cost.operators import Phase, model_operators
from ridgeline.cost.roofline import place_operators
from ridgeline.cost.vision_operators import vision_operators
from ridgeline.errors import InputError
from ridgeline.hardware.catalogue import device as find_device
from ridgeline.models.counts import parameter_count
from ridgeline.models.load import load_model
from ridgeline.models.presets import known_presets
from ridgeline.models.sequence import check_sequence, image_tokens
from ridgeline.models.spec import ModelSpec
from ridgeline.models.vision.network import VisionNetwork
from ridgeline.models.vision.presets import load_network, nearest_names
from ridgeline.plan.attained import read_attained
from ridgeline.plan.vision.question import vision_name
from ridgeline.records.roofline import ModelRoofline

DEFAULT_SEQ = 4096
"""Tokens per sequence where the model allows as many."""


def model_roofline(
    model: str | Path | ModelSpec | VisionNetwork,
    devices: Sequence[str],
    *,
    batch: int = 1,
    seq: int | None = None,
    phase: Phase = "train",
    measured: Path | None = None,
) -> ModelRoofline:
    """One pass of a model in each device's 16-bit dtype.

    `model` is a preset, a `config.json`, sizes as text, or a vision network, by name or counted.
    `seq` defaults to 4096 or what the model allows; images have none. `measured` is the file of a
    profile, whose operators are laid over the roofs.

    >>> roof = model_roofline("llama-3-8b", ["h100"], phase="decode", seq=8192)
    >>> roof.devices[0].operators[2].name, roof.devices[0].operators[2].bound
    ('qkv', 'memory')
    """
    if not devices:
        raise InputError("a roofline needs a device; name one, e.g. --device h100")
    if phase not in ("train", "prefill", "decode"):
        raise InputError(f"phase {phase!r}: it must be train, prefill or decode")
    parts = [find_device(name) for name in devices]
    if len({part.name for part in parts}) < len(parts):
        raise InputError(f"{', '.join(devices)}: a device is named twice; keep one")
    shape = model if isinstance(model, ModelSpec | VisionNetwork) else _find(model)
    length = _length(shape, seq)
    by_dtype: dict[str, list[ModelOperator]] = {}
    for part in parts:
        dtype = part.training_dtype
        if dtype in by_dtype:
            continue
        if isinstance(shape, VisionNetwork):
            by_dtype[dtype] = vision_operators(shape, batch, phase, dtype)
        else:
            assert length is not None
            by_dtype[dtype] = model_operators(shape, length, batch, 1, phase, dtype)
    operators = by_dtype[parts[0].training_dtype]
    return ModelRoofline(
        model=shape.name,
        phase=phase,
        batch=batch,
        seq=length,
        num_layers=None
        if isinstance(shape, VisionNetwork)
        else shape.layers + shape.decoder_layers,
        weight_bytes=_parameters(shape) * WIDTHS[parts[0].training_dtype],
        flops=sum(one.flops * one.count for one in operators),
        moved_bytes=sum(one.moved_bytes * one.count for one in operators),
        devices=[
            place_operators(by_dtype[part.training_dtype], part, part.training_dtype)
            for part in parts
        ],
        measured=None if measured is None else read_attained(measured),
    )


def _find(name: str | Path) -> ModelSpec | VisionNetwork:
    text = str(name)
    if vision_name(name) is not None and known_presets().names.get(text) is None:
        return load_network(text)
    try:
        return load_model(name)
    except InputError as error:
        near = nearest_names(text, cutoff=0.7)
        if not near or "=" in text or Path(text).suffix or "unknown model" not in str(error):
            raise
        raise InputError(f"{error}; or, of images, {', '.join(near)}") from None


def _parameters(shape: ModelSpec | VisionNetwork) -> int:
    return shape.parameters if isinstance(shape, VisionNetwork) else parameter_count(shape)


def _length(shape: ModelSpec | VisionNetwork, seq: int | None) -> int | None:
    if isinstance(shape, VisionNetwork):
        if seq is not None:
            raise InputError(f"{shape.name} takes images, not tokens; leave --seq out")
        return None
    if seq is not None:
        return check_sequence(shape, seq)
    if shape.kind == "vision":
        return image_tokens(shape)
    return min(DEFAULT_SEQ, shape.max_positions or DEFAULT_SEQ)
