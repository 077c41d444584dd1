"""Compressed checkpoints, read into layers that stay compressed; codebooks (AQLM) as numbers.

What `ridgeline compress` and llm-compressor write (`checkpoints/compressed_tensors.py`).
No kernel here multiplies by codebooks or by compressed experts, so these lie in memory as numbers,
in the dtype of the rest. transformers would read such a model too, but multiplies with dequantised
copies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ridgeline.checkpoints.compressed_tensors import (
    LayerFormat,
    WeightReader,
    quantisation_of,
    read_weight,
)
from ridgeline.checkpoints.files import StoredTensors
from ridgeline.checkpoints.layers import place_module
from ridgeline.checkpoints.quantised import Quantised
from ridgeline.checkpoints.skeleton import (
    StoredPiece,
    empty_model,
    owner_of,
    read_generation_config,
    set_tensor,
    stored_pieces,
)
from ridgeline.errors import InputError
from ridgeline.kernels.number_formats import fp4, mx
from ridgeline.models.folder import read_by_library
from ridgeline.serve.weights.layers import int4_layer, int8_layer, w8a8_layer
from ridgeline.serve.weights.linears import FrozenLinear
from ridgeline.serve.weights.shrink import is_shrunk


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

    reader = WeightReader(Path(directory))
    for _, group in reader.layers.groups:
        _int8_activations(group)  # refused before anything is read
    with read_by_library(directory):
        about = AutoConfig.from_pretrained(directory, trust_remote_code=trust_remote_code)
        del about.quantization_config
        model = empty_model(
            about, dtype=dtype, attention=attention, trust_remote_code=trust_remote_code
        )
    device = torch.device(device)
    pieces = stored_pieces(model, reader)
    compressed = {
        name: layer
        for name, module in model.named_modules()
        if is_shrunk(module) and (layer := _kept_compressed(reader, pieces.get(f"{name}.weight")))
    }
    for name, layer in compressed.items():
        made = linear_from(reader.tensors, layer, reader.format_of(layer), device, dtype)
        place_module(model, name, made)
    for target, parts in pieces.items():
        if target.rpartition(".")[0] not in compressed:
            _fill(model, target, parts, reader, device)
    model.tie_weights()  # type: ignore[attr-defined]
    read_generation_config(model, Path(directory))
    return model.to(device).eval().requires_grad_(requires_grad=False)  # type: ignore[no-any-return]


def _kept_compressed(reader: WeightReader, pieces: list[StoredPiece] | None) -> str | None:
    """The stored name of a layer that kernels multiply by as it is compressed; None: as numbers."""
    if pieces is None:  # a tied head
        return None
    layer = pieces[0].source.removesuffix(".weight")
    whole = len(pieces) == 1 and pieces[0].expert is None and pieces[0].rows is None
    if not whole or not reader.is_quantised(layer):
        return None
    return None if reader.format_of(layer).weights.kind == "codebook" else layer


def _fill(
    model: nn.Module,
    target: str,
    pieces: list[StoredPiece],
    reader: WeightReader,
    device: torch.device,
) -> None:
    """Give the model a parameter or buffer as numbers: what is dense, experts, and codebooks."""
    owner, leaf = owner_of(model, target)
    empty: Tensor = getattr(owner, leaf)
    values = torch.empty(empty.shape, dtype=empty.dtype)
    for piece in pieces:
        found = reader.read(piece.source)
        number = found if isinstance(found, Tensor) else found.dequantised(empty.dtype)
        piece.of(values).copy_(number)
    set_tensor(owner, leaf, values.to(device))


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
