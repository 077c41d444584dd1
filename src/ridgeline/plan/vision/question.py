"""What may be asked about a network for images: names, precisions, sizes; and what is refused."""

from __future__ import annotations

from difflib import SequenceMatcher
from pathlib import Path
from typing import Literal

from ridgeline.cost.vision.kept_activations import Numerics
from ridgeline.errors import InputError
from ridgeline.hardware.facts import Device
from ridgeline.models.load import load_model
from ridgeline.models.names import fold
from ridgeline.models.presets import known_presets, preset
from ridgeline.models.spec import ModelSpec
from ridgeline.models.vision.network import VisionNetwork
from ridgeline.models.vision.presets import find_name, load_network, nearest_names

MemoryFormat = Literal["contiguous", "channels_last"]
MEMORY_FORMATS = ("contiguous", "channels_last")
TRAINING_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
"""`bf16` and `fp16` are autocast over weights of 32 bits."""
INFERENCE_PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "int8")
ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "int8": 1}
LARGEST_BATCH = 1_000_000


def vision_name(model: str | Path) -> str | None:
    """The preset of a network for images that `model` names; None when it is something else.

    A path that is there, a `config.json` and sizes typed in place are models of tokens. The names
    that papers give to vision transformers lead to the same networks.

    >>> vision_name("ResNet-50"), vision_name("ViT-B/16"), vision_name("gpt2")
    ('resnet50', 'vit_base_patch16_224', None)
    """
    text = str(model)
    if "=" in text or text.endswith((".json", ".py")) or Path(text).exists():
        return None
    known = known_presets().names
    owner = known.get(text)
    if owner is None:
        return find_name(text)
    if preset(owner).kind != "vision":
        return None
    spellings = [spelling for spelling, name in known.owners.items() if name == owner]
    return next((name for name in map(find_name, spellings) if name is not None), None)


NOTHING_NEAR = "or sizes as layers"
"""In what is said of a name that is like none."""


def check_known(model: str) -> ModelSpec:
    """The model of tokens that is meant; an unknown name that looks like one of images says so.

    Raises:
        InputError: There is no such model.
    """
    try:
        return load_model(model)
    except InputError as error:
        near = [] if "=" in model or Path(model).suffix else nearest_names(model)
        alike = [one for one in near if SequenceMatcher(None, fold(model), fold(one)).ratio() > 0.8]
        if not alike and NOTHING_NEAR in str(error):
            raise InputError(
                f"{error}; a network for images as timm:NAME, hf:FOLDER or script.py:FUNCTION"
            ) from None
        if not alike:
            raise
        raise InputError(
            f"unknown model {model!r}; did you mean, of networks for images, {', '.join(alike)}?"
        ) from None


def network_of(
    model: str | Path | VisionNetwork, image_size: int | tuple[int, int] | None
) -> VisionNetwork:
    """The network that is meant, for images of this size; its own size by default."""
    if isinstance(model, VisionNetwork):
        return model
    return load_network(vision_name(model) or str(model), image_size)


def numerics_of(precision: str) -> Numerics:
    """How training in this precision holds weights and activations."""
    return "fp32" if precision in ("fp32", "tf32") else "amp"


def training_precision(device: Device, precision: str | None) -> str:
    """The precision, or the device's 16-bit one; refused where the device has no such units."""
    return _checked(device, precision or device.training_dtype, TRAINING_PRECISIONS)


def inference_precision(device: Device, precision: str | None) -> str:
    """The same for inference; by default 16 bits where the device has them."""
    sixteen = device.peak_flops_per_second.fp16 or device.peak_flops_per_second.bf16
    usual = "fp32" if sixteen is None else ("fp16" if "fp16" in device.peaks else "bf16")
    return _checked(device, precision or usual, INFERENCE_PRECISIONS)


def check_batch(batch: int, option: str = "--batch") -> int:
    """A number of images."""
    if not 1 <= batch <= LARGEST_BATCH:
        raise InputError(f"{option} {batch}: give a number of images from 1 to {LARGEST_BATCH:,}")
    return batch


def check_memory_format(memory_format: str) -> MemoryFormat:
    """The layout of activations in memory."""
    if memory_format not in MEMORY_FORMATS:
        raise InputError(f"--memory-format {memory_format}: use {' or '.join(MEMORY_FORMATS)}")
    return "channels_last" if memory_format == "channels_last" else "contiguous"


def peak_flops(device: Device, precision: str) -> float | None:
    """The dense peak behind a precision; None where none is published."""
    peaks = device.peaks
    return peaks.get(precision, peaks.get("fp32") if precision == "tf32" else None)


def _checked(device: Device, precision: str, known: tuple[str, ...]) -> str:
    if precision not in known:
        raise InputError(f"--precision {precision}: use one of {', '.join(known)}")
    if peak_flops(device, precision) is None:
        raise InputError(
            f"--precision {precision}: {device.name} has no published {precision} rate; it has"
            f" {', '.join(device.peaks)}"
        )
    return precision
