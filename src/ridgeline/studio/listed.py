"""What the choices list: names of the catalogue's models and devices, as explorers need them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from ridgeline.hardware.catalogue import devices
from ridgeline.models.load import load_model
from ridgeline.models.presets import preset_names


def every_model() -> Mapping[str, str]:
    """All presets of transformers."""
    return {name: name for name in preset_names()}


@cache
def language_models() -> Mapping[str, str]:
    """Presets that are trained to predict tokens."""
    found = {name: load_model(name) for name in preset_names()}
    return {name: name for name, spec in found.items() if spec.is_causal_language_model}


def every_device() -> Mapping[str, str]:
    """All devices that there are facts about."""
    return {one.name: one.name for one in devices()}


@cache
def training_devices() -> Mapping[str, str]:
    """Devices with 16-bit arithmetic and 16 GB or more."""
    return {
        one.name: one.name
        for one in devices()
        if one.training_dtype != "fp32"
        and one.chip.unit != "core"
        and one.memory.usable_bytes > 15e9
    }
