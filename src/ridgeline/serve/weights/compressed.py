"""Compressed checkpoints, read into layers that stay compressed; codebooks (AQLM) as numbers.

What `ridgeline compress` and llm-compressor write (`checkpoints/compressed_tensors.py`).
No kernel here multiplies by codebooks, so their weights lie in memory as numbers, in the dtype of
the rest. transformers would read such a model too, but multiplies with dequantised copies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ridgeline.checkpoints.compressed_tensors import (
    ACTIVATION_PARTS,
    CACHE_PARTS,
    WEIGHT_PARTS,
    LayerFormat,
    quantisation_of,
    quantised_layers,
    read_weight,
)
from ridgeline.checkpoints.files import StoredTensors
from ridgeline.checkpoints.layers import place_module
from ridgeline.checkpoints.quantised import Quantised
from ridgeline.checkpoints.skeleton import (
    empty_model,
    owner_of,
    read_generation_config,
    set_tensor,
)
from ridgeline.errors import InputError
from ridgeline.kernels.number_formats import fp4, mx
from ridgeline.models.folder import read_by_library
from ridgeline.serve.weights.layers import int4_layer, int8_layer, w8a8_layer
from ridgeline.serve.weights.linears import FrozenLinear


def is_compressed(directory: str) -> bool:
    """Whether this is a compressed checkpoint that is read here."""
    return bool(quantisation_of(directory))


def load_compressed(
    directory: str,
    dtype: torch.dtype,
    *,
    device: torch.device | str = "cpu",
    attention: str = "eager",
    trust_remote_code: bool = False,
) -> nn.Module:
    """Read the model, its quantised layers into `linears.py`, all else in `dtype`.

    Tensor by tensor: never more than one layer lies in memory twice.

    Args:
        directory: The checkpoint.
        dtype: The dtype of what is not quantised.
        device: Where everything goes.
        attention: transformers' name of the implementation.
        trust_remote_code: As transformers means it.

    Raises:
        InputError: A scheme that is not known, or tensors that do not fit the model.
    """
    from transformers import AutoConfig

    quantised = quantised_layers(directory, quantisation_of(directory))
    for _, group in quantised.groups:
        _int8_activations(group)  # refused before anything is read
    with read_by_library(directory):
        about = AutoConfig.from_pretrained(directory, trust_remote_code=trust_remote_code)
        del about.quantization_config
        model = empty_model(
            about, dtype=dtype, attention=attention, trust_remote_code=trust_remote_code
        )
    tensors = StoredTensors(Path(directory))
    left = dict.fromkeys(tensors.names)
    device = torch.device(device)
    for name, module in list(model.named_modules()):
        found = quantised.of(name) if type(module) is nn.Linear else None
        if found is None or _is_tied_head(model, module, name, tensors):
            continue
        if found.weights.kind == "codebook":
            _read_codebooks(model, tensors, name, found, dtype, device)
            for part in WEIGHT_PARTS:
                left.pop(f"{name}.{part}", None)
            continue
        made = linear_from(tensors, name, found, device, dtype)
        sizes, expected = [made.out_features, made.in_features], list(module.weight.shape)
        if sizes != expected:
            raise InputError(f"{directory}: {name}.weight is {sizes}, config.json says {expected}")
        place_module(model, name, made)
        for part in (*WEIGHT_PARTS, *ACTIVATION_PARTS.values(), "bias"):
            left.pop(f"{name}.{part}", None)
    _read_dense(model, tensors, list(left), dtype, device)
    read_generation_config(model, Path(directory))
    return model.to(device).eval().requires_grad_(requires_grad=False)  # type: ignore[no-any-return]


def _is_tied_head(model: Any, module: nn.Module, name: str, tensors: StoredTensors) -> bool:
    """Whether this is a head that has no tensors of its own."""
    head = model.get_output_embeddings()
    return module is head and not any(f"{name}.{part}" in tensors for part in WEIGHT_PARTS)


def _read_dense(
    model: Any, tensors: StoredTensors, left: list[str], dtype: torch.dtype, device: torch.device
) -> None:
    """Give the model the tensors that no quantised layer took."""
    places = dict(model.named_parameters()) | dict(model.named_buffers())
    calibrated = quantisation_of(tensors.directory).get("kv_cache_scheme")
    for name in left:
        if calibrated and name.rpartition(".")[2] in CACHE_PARTS:
            continue  # `calibrated_cache` reads them
        if name not in places:
            raise InputError(
                f"{tensors.directory}: {name} is no tensor of a {type(model).__name__}; its layout "
                "is not known here, so save the model uncompressed and use --weights"
            )
        stored = tensors.read(name).to(device)
        if stored.is_floating_point():
            stored = stored.to(dtype)
        if stored.shape != places[name].shape:
            raise InputError(
                f"{tensors.directory}: {name} is {list(stored.shape)}, "
                f"config.json says {list(places[name].shape)}"
            )
        set_tensor(*owner_of(model, name), stored)
    model.tie_weights()
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise InputError(f"{tensors.directory}: {name} is missing")


def _read_codebooks(
    model: Any,
    tensors: StoredTensors,
    name: str,
    found: LayerFormat,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Give a layer its weight as numbers."""
    weight = read_weight(tensors, name, found)
    owner, part = owner_of(model, f"{name}.weight")
    expected = getattr(owner, part).shape
    if weight.shape != expected:
        raise InputError(
            f"{tensors.directory}: {name}.weight is {list(weight.shape)}, config.json says "
            f"{list(expected)}"
        )
    set_tensor(owner, part, weight.dequantised(dtype).to(device))


def linear_from(
    tensors: StoredTensors, name: str, found: LayerFormat, device: torch.device, dtype: torch.dtype
) -> FrozenLinear:
    """Read the layer of that name, for activations of `dtype`.

    Raises:
        InputError: Tensors are missing, or what they hold is not supported.
    """
    weight = read_weight(tensors, name, found)
    levels, scales = _multiplied(weight)
    outputs = len(levels)
    scales = scales.expand(outputs, -1).contiguous().to(device)
    zeros = None if weight.zeros is None else weight.zeros.expand(outputs, -1).contiguous()
    zeros = None if zeros is None else zeros.to(device)
    bias = tensors.read(f"{name}.bias").to(device) if f"{name}.bias" in tensors else None
    plain = found.weights.bits == 8 and scales.shape[1] == 1 and zeros is None
    activations = _int8_activations(found)
    if activations != "wide" and plain and device.type == "cpu":
        step = _step(tensors, f"{name}.input_scale") if activations == "fixed" else None
        return w8a8_layer(levels, scales, bias, step, dtype)
    # Other activations stay wide here, whatever they were to be quantised to.
    int4 = found.weights.kind == "int" and found.weights.bits <= 4
    made = int4_layer if int4 else int8_layer
    return made(levels.to(device), scales, zeros, bias, dtype)


def _multiplied(weight: Quantised) -> tuple[Tensor, Tensor]:
    """Levels and scales that kernels multiply: the former in 8 bits, the latter as numbers."""
    kind, levels, scales = weight.format.kind, weight.levels, weight.scales
    half = 1.0
    if kind in {"mxfp4", "nvfp4"}:
        # Twice an E2M1 number is a whole one, up to 12: int8 levels, and half the scale.
        levels, half = (2 * fp4.value(levels)).to(torch.int8), 0.5
    if kind in {"mxfp4", "mxfp8"}:
        return levels, (mx.powers_of_two(scales) * half).bfloat16()  # exact: powers of two
    if kind == "nvfp4":
        assert weight.global_scale is not None
        return levels, scales.float() / weight.global_scale * half
    return levels, scales


def _step(tensors: StoredTensors, name: str) -> float:
    """What all activations of a layer are divided by."""
    step = tensors.read(name)
    if step.numel() != 1 or not 0 < float(step) < float("inf"):
        raise InputError(
            f"{tensors.directory}: {name} is of {list(step.shape)}, not one number above 0"
        )
    return float(step)


def _int8_activations(found: LayerFormat) -> Literal["wide", "by token", "fixed"]:
    """Whether activations are quantised to int8 too, beside integer weights, and by whose scale."""
    about = found.activations
    if not about or found.weights.kind != "int":
        return "wide"
    share, dynamic = about.get("strategy", "token"), bool(about.get("dynamic"))
    known: dict[Any, Literal["by token", "fixed"]] = {
        ("token", True): "by token",
        ("tensor", False): "fixed",
    }
    plain = about.get("num_bits") == 8 and about.get("type", "int") == "int"
    if (share, dynamic) not in known or not plain or not about.get("symmetric", True):
        raise InputError(
            f"{found.where}: input_activations of {about.get('num_bits')} bits, a scale per {share}"
            f", dynamic={dynamic}, symmetric={about.get('symmetric', True)}, are not supported; "
            "known are symmetric 8-bit integers, dynamic per token or static per tensor"
        )
    return known[share, dynamic]
